//! Messages to whoever listens.

use std::time::Duration;

use bytes::Bytes;
use courant_connectors::live::{Channel, Heard, Limits, Listener, Live};
use courant_connectors::model::GatewayId;
use futures::FutureExt;
use tokio::time::timeout;

use super::{Subject, eventually, hear};

pub async fn nobody_hears_what_nobody_listens_to(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let channel = channel();
    assert_eq!(live.publish(&[(channel.clone(), number(1))]).await.unwrap(), [0]);
    assert!(live.publish(&[]).await.unwrap().is_empty());
    let mut late = live.subscribe(&[channel]).await.unwrap();
    assert!(timeout(Duration::from_millis(50), late.next()).await.is_err(), "there was nothing to hear");
}

pub async fn messages_are_heard_in_order(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let channel = channel();
    let mut listener = live.subscribe(std::slice::from_ref(&channel)).await.unwrap();
    for batch in 0..10 {
        let messages: Vec<_> = (0..100).map(|n| (channel.clone(), number(batch * 100 + n))).collect();
        assert_eq!(live.publish(&messages).await.unwrap(), [1; 100]);
    }
    for n in 0..1000 {
        assert_eq!(hear(&mut listener).await, heard(&channel, number(n)));
    }
}

pub async fn every_listener_hears_its_channels_and_no_others(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let [one, two, none] =
        [channel(), Channel::named(&format!("каналы:{}", GatewayId::generate())), channel()];
    let mut both = live.subscribe(&[one.clone(), two.clone(), one.clone()]).await.unwrap();
    let mut only_two = live.subscribe(std::slice::from_ref(&two)).await.unwrap();
    let messages =
        [(two.clone(), number(1)), (none, number(2)), (one.clone(), number(3)), (two.clone(), number(4))];
    assert_eq!(live.publish(&messages).await.unwrap(), [2, 0, 1, 2]);
    for n in [1, 4] {
        assert_eq!(hear(&mut only_two).await, heard(&two, number(n)));
    }
    // Order holds within a channel; two channels may lie on two servers.
    let mut of_both = [hear(&mut both).await, hear(&mut both).await, hear(&mut both).await];
    of_both.sort_by_key(|heard| matches!(heard, Heard::Message { channel, .. } if *channel == two));
    assert_eq!(of_both, [heard(&one, number(3)), heard(&two, number(1)), heard(&two, number(4))]);
}

pub async fn payloads_are_any_bytes(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let channel = channel();
    let mut listener = live.subscribe(std::slice::from_ref(&channel)).await.unwrap();
    let every_byte: Bytes = (0..=u8::MAX).collect();
    let payloads =
        [Bytes::new(), every_byte.clone(), every_byte.repeat(4096).into(), Bytes::from_static(b"\r\n")];
    for payload in payloads {
        assert_eq!(live.publish(&[(channel.clone(), payload.clone())]).await.unwrap(), [1]);
        assert_eq!(hear(&mut listener).await, heard(&channel, payload));
    }
}

pub async fn a_slow_listener_gets_a_gap_and_holds_up_nobody(start: impl AsyncFn(Limits) -> Subject) {
    const FITS: usize = 8;
    const SENT: u32 = 200;
    let Subject { live, server: _server } = start(Limits { queue_messages: FITS, ..Limits::default() }).await;
    let channel = channel();
    let mut slow = live.subscribe(std::slice::from_ref(&channel)).await.unwrap();
    let mut quick = live.subscribe(std::slice::from_ref(&channel)).await.unwrap();
    for n in 0..SENT {
        assert_eq!(live.publish(&[(channel.clone(), number(n))]).await.unwrap(), [2]);
        assert_eq!(hear(&mut quick).await, heard(&channel, number(n)));
    }
    for n in 0..FITS {
        assert_eq!(hear(&mut slow).await, heard(&channel, number(u32::try_from(n).unwrap())));
    }
    assert_eq!(hear(&mut slow).await, Heard::Gap);
    until_heard(&*live, &mut slow, &channel).await;
}

/// It listens again: what is published now is heard.
async fn until_heard(live: &dyn Live, listener: &mut Box<dyn Listener>, channel: &Channel) {
    let last = Bytes::from_static(b"last");
    live.publish(&[(channel.clone(), last.clone())]).await.unwrap();
    // The last of what did not fit may be on its way still.
    while hear(listener).await != heard(channel, last.clone()) {}
}

pub async fn a_dropped_listener_is_gone(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let channel = channel();
    let dropped = live.subscribe(std::slice::from_ref(&channel)).await.unwrap();
    let mut kept = live.subscribe(std::slice::from_ref(&channel)).await.unwrap();
    drop(dropped);
    eventually("one listener less", async || {
        let heard = live.publish(&[(channel.clone(), number(1))]).await.unwrap();
        (heard == [1]).then_some(())
    })
    .await;
    assert_eq!(hear(&mut kept).await, heard(&channel, number(1)));
}

pub async fn waiting_can_be_given_up(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let channel = channel();
    let mut listener = live.subscribe(std::slice::from_ref(&channel)).await.unwrap();
    for n in 0..100 {
        assert!(listener.next().now_or_never().is_none());
        live.publish(&[(channel.clone(), number(n))]).await.unwrap();
        // Every wait is dropped after its first poll.
        let got = eventually("a message", async || listener.next().now_or_never()).await;
        assert_eq!(got.unwrap(), heard(&channel, number(n)));
    }
}

/// Nobody else's.
pub fn channel() -> Channel {
    Channel::deliver(&GatewayId::generate())
}

pub fn number(n: u32) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

pub fn heard(channel: &Channel, payload: Bytes) -> Heard {
    Heard::Message { channel: channel.clone(), payload }
}
