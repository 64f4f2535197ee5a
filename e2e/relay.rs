//! A link between two sites that can be cut and healed while both sides run.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quorate_link::drain::Drain;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// One direction of a link: connections to `address` end up at a target, while it is open.
#[derive(Debug)]
pub struct Relay {
    /// What the caller has to dial.
    pub address: SocketAddr,
    open: watch::Sender<bool>,
    drain: Drain,
}

impl Relay {
    /// Listens at `address` for `target`; cut at first. What comes while it is cut is closed at once.
    pub async fn cut_off(address: SocketAddr, target: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?;
        let (open, state) = watch::channel(false);
        let drain = Drain::new();
        drain.spawn_until(accept(listener, target, state, drain.clone()));
        Ok(Self { address, open, drain })
    }

    /// Lets connections through.
    pub fn heal(&self) {
        self.open.send_replace(true);
    }

    /// Closes all connections and lets nothing through.
    pub fn cut(&self) {
        self.open.send_replace(false);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.drain.start();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, mut open: watch::Receiver<bool>, drain: Drain) {
    loop {
        let Ok((mut from, _)) = listener.accept().await else {
            // Out of descriptors, say: not at once again.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if !*open.borrow_and_update() {
            continue;
        }
        let mut open = open.clone();
        drain.spawn_until(async move {
            let Ok(mut to) = TcpStream::connect(target).await else { return };
            tokio::select! {
                _ = copy_bidirectional(&mut from, &mut to) => {}
                _ = open.wait_for(|open| !open) => {}
            }
        });
    }
}
