//! A server without sockets, and people who use it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bytes::Bytes;
use courant_connectors::embedded::{Engine, MemoryLive, Options};
use courant_connectors::model::commands::{Answer as CommandAnswer, Code, Refusal};
use courant_connectors::model::tables::TABLES;
use courant_connectors::model::{GatewayId, SessionId, UserId};
use courant_connectors::store::AdminStore as _;
use courant_pipeline::intake::Intake;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body;
use jsonschema::Validator;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};

use super::pipelines;
use crate::api::{Api, Backing};
use crate::auth::{AuthConfig, Caller, Passwords};
use crate::commands::Commands;
use crate::config::EdgeConfig;
use crate::fake::FakeControl;
use crate::http::{HttpServer, Routes, answer_here};
use crate::limits::LimitsConfig;
use crate::rest::openapi::describe;
use crate::rest::{PREFIX, routes, table};

pub(super) struct World {
    pub(super) api: Api,
    pub(super) engine: Arc<Engine>,
    /// What the pipelines answer next, instead of doing as they are told.
    pub(super) scripted: Arc<Mutex<VecDeque<CommandAnswer>>>,
    routes: Routes,
    _folder: tempfile::TempDir,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    /// Null if there is none.
    pub(super) body: Value,
}

impl Answer {
    /// The status and the code of its error.
    pub(super) fn refusal(&self) -> (u16, &str) {
        (self.status, self.body["error"]["code"].as_str().unwrap_or("none"))
    }

    pub(super) fn header(&self, name: impl warp::http::header::AsHeaderName) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.body[name].as_str().unwrap_or_else(|| panic!("no {name}: {self:?}")).to_owned()
    }
}

/// Somebody who is signed in.
#[derive(Debug, Clone)]
pub(super) struct Person {
    pub(super) user_id: UserId,
    pub(super) session_id: SessionId,
    pub(super) token: String,
    pub(super) refresh_token: String,
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(|_, _| {}).await
    }

    /// With settings changed. Limits are off unless they are switched on again.
    pub(super) async fn with(change: impl FnOnce(&mut EdgeConfig, &mut AuthConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path().join("engine"), Options::default()).await.unwrap();
        for table in TABLES {
            engine.create_table(table).await.unwrap();
        }
        let limits = LimitsConfig { enabled: false, ..LimitsConfig::default() };
        let mut edge = EdgeConfig { limits, ..EdgeConfig::default() };
        let mut auth = AuthConfig { reveal_codes: true, ..AuthConfig::default() };
        change(&mut edge, &mut auth);
        let intake = Intake::default();
        let scripted = Arc::new(Mutex::default());
        pipelines::start(&intake, Arc::clone(&engine), Arc::clone(&scripted)).await;
        let backing = Backing {
            store: Arc::clone(&engine) as _,
            live: Arc::new(MemoryLive::new()),
            searches: Arc::default(),
            commands: Commands::new(intake, Duration::from_secs(5)),
            gateway: GatewayId::generate(),
        };
        let mut api = Api::open(edge, auth, folder.path(), backing).unwrap();
        api.passwords = Passwords::weak();
        Self { routes: routes(api.clone()), api, engine, scripted, _folder: folder }
    }

    pub(super) fn script(&self, answer: CommandAnswer) {
        self.scripted.lock().unwrap().push_back(answer);
    }

    pub(super) fn script_refusal(&self, code: Code) {
        self.script(CommandAnswer::Refused(Refusal::new(code, "as scripted")));
    }

    /// Any request at all; its answer is held against the description.
    pub(super) async fn send<B>(&self, request: Request<B>) -> Answer
    where
        B: Body + Send + Sync + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let peer = SocketAddr::from(([192, 0, 2, 1], 4711));
        let (head, body) = answer_here(&self.routes, peer, request).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        let answer = Answer { status: head.status.as_u16(), headers: head.headers, body };
        check_described(&method, &path, &answer);
        answer
    }

    pub(super) async fn call(&self, method: Method, path: &str, token: Option<&str>, body: Value) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("{PREFIX}{path}"));
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = if body.is_null() {
            Bytes::new()
        } else {
            request = request.header(header::CONTENT_TYPE, "application/json");
            body.to_string().into()
        };
        self.send(request.body(Full::new(body)).unwrap()).await
    }

    pub(super) async fn get(&self, path: &str, who: &Person) -> Answer {
        self.call(Method::GET, path, Some(&who.token), Value::Null).await
    }

    pub(super) async fn post(&self, path: &str, who: &Person, body: Value) -> Answer {
        self.call(Method::POST, path, Some(&who.token), body).await
    }

    pub(super) async fn post_as_nobody(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, None, body).await
    }

    /// Serves on a socket of its own until the test ends; where.
    pub(super) async fn serve(&self) -> SocketAddr {
        let edge = EdgeConfig { listen: "127.0.0.1:0".parse().unwrap(), ..EdgeConfig::default() };
        let server = HttpServer::bind(&edge).await.unwrap();
        let address = server.address();
        let routes = Some(self.routes.clone());
        tokio::spawn(server.run(FakeControl::with(Vec::new()), routes, CancellationToken::new()));
        address
    }

    /// Registers, verifies and signs in.
    pub(super) async fn person(&self, number: u32) -> Person {
        let phone_number = phone_number(number);
        let registration = json!({"phone_number": phone_number, "display_name": format!("Person {number}"), "password": PASSWORD});
        let registered = self.post_as_nobody("/auth/register", registration).await;
        assert_eq!(registered.status, 201, "{registered:?}");
        let proof = json!({"phone_number": phone_number, "code": registered.text("code")});
        assert_eq!(self.post_as_nobody("/auth/verify", proof).await.status, 200);
        let login = json!({"phone_number": phone_number, "password": PASSWORD});
        Person::new(&self.post_as_nobody("/auth/login", login).await)
    }

    /// A chat with others in it.
    pub(super) async fn group(&self, owner: &Person, others: &[&Person]) -> String {
        let members: Vec<_> = others.iter().map(|person| person.user_id.as_str()).collect();
        let made = self.post("/chats", owner, json!({"chat_type": "group", "members": members})).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.text("chat_id")
    }
}

pub(super) const PASSWORD: &str = "correct horse";

pub(super) fn phone_number(number: u32) -> String {
    format!("+4179{number:07}")
}

impl Person {
    pub(super) fn new(signed_in: &Answer) -> Self {
        assert_eq!(signed_in.status, 200, "{signed_in:?}");
        Self {
            user_id: signed_in.text("user_id").into(),
            session_id: signed_in.text("session_id").into(),
            token: signed_in.text("access_token"),
            refresh_token: signed_in.text("refresh_token"),
        }
    }

    pub(super) fn caller(&self) -> Caller {
        Caller {
            user_id: self.user_id.clone(),
            session_id: self.session_id.clone(),
            device_id: "dev_1".into(),
        }
    }
}

pub(super) fn header_of(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), HeaderValue::from_static(value))
}

pub(super) static DESCRIPTION: LazyLock<Value> = LazyLock::new(|| describe(&table()));

/// Whether the description knows such an answer: its status and the shape of its body.
fn check_described(method: &Method, path: &str, answer: &Answer) {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let below = path.strip_prefix(PREFIX).unwrap_or_default();
    let route = table().into_iter().find(|route| route.matches(below).is_some());
    let Some(route) = route else { return assert_eq!(answer.status, 404) };
    let described = &DESCRIPTION["paths"][format!("{PREFIX}{}", route.path)][method.as_str().to_lowercase()];
    if described.is_null() {
        return assert!([204, 405].contains(&answer.status), "{method} {path}: {answer:?}");
    }
    let response = &described["responses"][answer.status.to_string()];
    assert!(!response.is_null(), "{method} {path} is not described to answer {answer:?}");
    let code = answer.body["error"]["code"].as_str();
    if let Some(code) = code {
        assert!(response["description"].as_str().unwrap().contains(code), "{method} {path}: {answer:?}");
    }
    let schema = &response["content"]["application/json"]["schema"];
    if schema.is_null() || answer.body.is_null() {
        let is_empty = answer.status == StatusCode::NO_CONTENT || method == Method::GET;
        return assert!(
            answer.body.is_null() && (is_empty || schema.is_null()),
            "{method} {path}: {answer:?}"
        );
    }
    let validator = validator(schema);
    let errors: Vec<_> = validator.iter_errors(&answer.body).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{method} {path}: {errors:?} in {answer:?}");
}

pub(super) fn validator(schema: &Value) -> Validator {
    let mut whole = schema.clone();
    whole["components"] = DESCRIPTION["components"].clone();
    jsonschema::draft202012::new(&whole).unwrap()
}
