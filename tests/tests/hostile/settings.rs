//! Settings that are for one's own machine.

use courant_tests::home;

use super::start;

#[test]
fn settings_for_development_are_warned_of_where_others_can_connect() {
    let home = home!().with_shipped_pipelines();
    let risk = "auth.reveal_codes is on and others can connect";
    let mut at_home = start(&home, &[]);
    assert!(!at_home.has_logged(risk), "nobody else can connect");
    at_home.stop();
    let mut in_public = start(&home, &[("COURANT_EDGE__LISTEN", "0.0.0.0:0")]);
    in_public.wait_logged(risk);
    in_public.stop();
    let careful = [("COURANT_EDGE__LISTEN", "0.0.0.0:0"), ("COURANT_AUTH__REVEAL_CODES", "false")];
    assert!(!start(&home, &careful).has_logged(risk), "there is nothing to warn of");
}
