//! Long links: a userspace proxy per directed pair of sites, with delay, bandwidth and loss.
//!
//! At site A the names of B's members and the address of B's agent lead to a proxy inside A's own namespace, which dials B.
//! What A sends is held up by the link A→B, what comes back by B→A. Bytes arrive late, never out of order and never
//! changed, as with TCP; a lost packet is the time until TCP has sent it again.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::net::{Net, enter};

/// The agents, and etcd peers by ordinal.
const PORTS: [u16; 4] = [8443, 2380, 2390, 2400];
/// How long TCP waits at least before it sends again.
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// What is held at most on one connection, in pieces of up to 16 KiB: a sender is slowed down by a slow link.
const WINDOW: usize = 64;

/// How one direction of a link is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Quality {
    /// From here to there.
    pub delay: Duration,
    /// Bytes a second; none is without limit.
    pub bandwidth: Option<u64>,
    /// One in so many pieces is lost once; none is lost with 0.
    pub loss_one_in: u32,
    /// Nothing arrives, and nobody is told.
    pub cut: bool,
}

#[derive(Debug, Default)]
struct Links {
    quality: BTreeMap<(String, String), Quality>,
    /// When the link has sent what it was given; connections share it.
    free: BTreeMap<(String, String), Duration>,
    pieces: u32,
}

/// The links between all sites of a network, as long as this lives.
#[derive(Debug)]
pub struct Wan {
    proxies: Proxies,
}

#[derive(Debug, Clone)]
struct Proxies {
    clock: Clock,
    links: Arc<Mutex<Links>>,
    drain: Drain,
}

impl Wan {
    /// Starts the proxies of all sites, with perfect links.
    pub fn start(net: &Net, sites: &[String]) -> Result<Self> {
        let proxies = Proxies { clock: Clock::start(), links: Arc::default(), drain: Drain::new() };
        for from in sites {
            let namespace = net.path(from)?;
            let mut doors = Vec::new();
            for (number, to) in (1..).zip(sites) {
                if to != from {
                    doors.push((door(number), to.clone(), net.address(to)?));
                }
            }
            let (proxies, from) = (proxies.clone(), from.clone());
            let (ready, started) = std::sync::mpsc::channel();
            std::thread::Builder::new().name(format!("wan-{from}")).spawn(move || {
                let run = || -> Result<()> {
                    enter(&namespace)?;
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                    runtime.block_on(proxies.serve(from, doors, &ready))
                };
                if let Err(error) = run() {
                    let _ = ready.send(Err(error));
                }
            })?;
            started.recv().context("the proxy ended")??;
        }
        Ok(Self { proxies })
    }

    /// Where site `number` (from 1) is found by the others.
    pub const fn door(number: u8) -> Ipv4Addr {
        door(number)
    }

    /// Sets one direction of a link.
    pub fn set(&self, from: &str, to: &str, quality: Quality) {
        let mut links = self.proxies.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.quality.insert((from.to_owned(), to.to_owned()), quality);
    }

    /// Sets both directions: `rtt` is there and back.
    pub fn set_rtt(&self, one: &str, other: &str, rtt: Duration) {
        let quality = Quality { delay: rtt / 2, ..Quality::default() };
        self.set(one, other, quality);
        self.set(other, one, quality);
    }
}

impl Proxies {
    /// When a piece of this size arrives, if it is sent now; none if it never does.
    fn arrival(&self, link: &(String, String), size: usize) -> Option<Duration> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let quality = links.quality.get(link).copied().unwrap_or_default();
        if quality.cut {
            return None;
        }
        links.pieces = links.pieces.wrapping_add(1);
        let mut delay = quality.delay;
        if quality.loss_one_in > 0 && links.pieces.is_multiple_of(quality.loss_one_in) {
            delay += RETRANSMISSION + 2 * quality.delay;
        }
        let mut sent = self.clock.elapsed();
        if let Some(bandwidth) = quality.bandwidth {
            let begins = links.free.get(link).copied().map_or(sent, |free| free.max(sent));
            let nanoseconds = (size as u64).saturating_mul(1_000_000_000) / bandwidth.max(1);
            sent = begins + Duration::from_nanos(nanoseconds);
            links.free.insert(link.clone(), sent);
        }
        Some(sent + delay)
    }

    async fn serve(
        self,
        from: String,
        doors: Vec<(Ipv4Addr, String, Ipv4Addr)>,
        ready: &std::sync::mpsc::Sender<Result<()>>,
    ) -> Result<()> {
        for (door, to, address) in doors {
            for port in PORTS {
                let listener = TcpListener::bind((door, port)).await?;
                let target = SocketAddr::from((address, port));
                self.drain.spawn_until(self.clone().accept(listener, from.clone(), to.clone(), target));
            }
        }
        let _ = ready.send(Ok(()));
        self.drain.signalled().await;
        Ok(())
    }

    async fn accept(self, listener: TcpListener, from: String, to: String, target: SocketAddr) {
        loop {
            let Ok((near, _)) = listener.accept().await else {
                // Out of descriptors, say: not at once again.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (proxies, there, back) =
                (self.clone(), (from.clone(), to.clone()), (to.clone(), from.clone()));
            self.drain.spawn_until(async move {
                let Ok(far) = TcpStream::connect(target).await else { return };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                // Whichever direction ends first ends the other: both sides see a closed connection.
                tokio::select! {
                    () = proxies.carry(there, near_in, far_out) => {}
                    () = proxies.carry(back, far_in, near_out) => {}
                }
            });
        }
    }

    async fn carry(&self, link: (String, String), mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let (queue, mut pieces) = mpsc::channel::<(Duration, Vec<u8>)>(WINDOW);
        let read = async move {
            let mut last = Duration::ZERO;
            loop {
                let mut piece = vec![0; 16 * 1024];
                let Ok(size) = from.read(&mut piece).await else { return };
                if size == 0 {
                    return;
                }
                piece.truncate(size);
                let Some(at) = self.arrival(&link, size) else {
                    // Swallowed by the cut; the connection stays open and silent, as with dropped packets.
                    std::future::pending::<()>().await;
                    return;
                };
                last = last.max(at);
                if queue.send((last, piece)).await.is_err() {
                    return;
                }
            }
        };
        let write = async {
            while let Some((at, piece)) = pieces.recv().await {
                tokio::time::sleep(at.saturating_sub(self.clock.elapsed())).await;
                if to.write_all(&piece).await.is_err() {
                    return;
                }
            }
        };
        tokio::pin!(read, write);
        tokio::select! {
            () = &mut read => {}
            () = &mut write => return,
        }
        // What is on its way still arrives.
        write.await;
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        self.proxies.drain.start();
    }
}

const fn door(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, number, 1)
}
