//! Certificates that must not be enough.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::mesh::{CLIENT_PORT, TRUST_DOMAIN};
use quorate_e2e::stranger::handshake;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome};
use quorate_link::clock::Clock;
use quorate_link::identity::Identity;
use quorate_link::pki::{Leaf, Pair, Root, SitePki};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};

use crate::house::{House, at_home};

pub(crate) const CASES: &[Case] = &[
    Case { name: "trust::certificates", minors: &[Minor::V3_6], short: Some(Minor::V3_6), run: certificates },
    Case { name: "trust::old_tls", minors: ALL, short: None, run: old_tls },
];

/// Shows a certificate at the mesh port; it must be refused, and the log has to say why.
async fn refused(house: &House, what: &str, leaf: &Pair, words: &[&str]) -> Result<()> {
    let east = house.east()?;
    let roots = east.pki()?.root_path(Root::Agent);
    let answer = handshake(&east.mesh(), &rustls::version::TLS13, &roots, leaf).await;
    ensure!(answer.is_err(), "{what} was let in");
    house.logged(words).await.with_context(|| format!("after {what}"))?;
    Ok(())
}

fn certificates(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let east = house.east()?;
        let west = house.west()?.pki()?;
        let known = west.agent_pair();
        let roots = east.pki()?.root_path(Root::Agent);
        let open = handshake(&east.mesh(), &rustls::version::TLS13, &roots, &known).await;
        open.context("a site of the mesh has to be let in, or the rest proves nothing")?;
        let folder = tempfile::tempdir()?;
        let pair = |name: &str| Pair::at(folder.path(), name);

        // The same names, from another mesh.
        let elsewhere = folder.path().join("elsewhere");
        let stranger = SitePki::init(&elsewhere, "west", TRUST_DOMAIN)?;
        refused(
            &house,
            "the agent of another mesh",
            &stranger.agent_pair(),
            &["connection refused", "agent of west", "quorate mesh accept"],
        )
        .await?;
        // Of a site that is trusted nowhere here.
        let nowhere = SitePki::init(&folder.path().join("nowhere"), "mars", TRUST_DOMAIN)?;
        refused(
            &house,
            "an unknown site",
            &nowhere.agent_pair(),
            &["mars", "not trusted", "quorate mesh invite"],
        )
        .await?;
        // Another trust domain.
        let abroad = SitePki::init(&folder.path().join("abroad"), "west", "other.test")?;
        refused(&house, "another trust domain", &abroad.agent_pair(), &["connection refused", "other.test"])
            .await?;
        // West's root vouches for east itself, whose own root is trusted as well.
        let forger = SitePki::open(&house.west()?.state(), "east", TRUST_DOMAIN)?;
        forger.issue_at(&Leaf::Agent, &pair("forged"), Clock::wall())?;
        refused(&house, "a root that vouches for a foreign site", &pair("forged"), &["connection refused"])
            .await?;
        // Expired, and not yet good.
        let now = Clock::wall();
        let year = Duration::from_hours(400 * 24);
        west.issue_at(&Leaf::Agent, &pair("expired"), now - year)?;
        refused(&house, "an expired certificate", &pair("expired"), &["connection refused", "xpired"])
            .await?;
        west.issue_at(&Leaf::Agent, &pair("early"), now + year)?;
        refused(&house, "a certificate of the future", &pair("early"), &["connection refused", "valid"])
            .await?;
        // Made for a server only.
        server_only(&west, &pair("server"))?;
        refused(
            &house,
            "a certificate with the wrong usage",
            &pair("server"),
            &["connection refused", "client"],
        )
        .await?;
        // Of a member, not of an agent.
        let member = Leaf::MemberApi { uid: "0".repeat(32), slot: "main-west-0".to_owned() };
        west.ensure(&member, &pair("member"))?;
        refused(&house, "a member's certificate", &pair("member"), &["connection refused"]).await?;
        // Nobody at all.
        west.ensure(&Leaf::User { name: "root".to_owned() }, &pair("user"))?;
        refused(&house, "a user of etcd", &pair("user"), &["connection refused"]).await?;

        // West is still welcome.
        handshake(&east.mesh(), &rustls::version::TLS13, &roots, &known).await.context("west, afterwards")?;
        house.unharmed().await
    })
}

/// A certificate of west's agent that is good for servers only.
fn server_only(west: &SitePki, pair: &Pair) -> Result<()> {
    let root = west.root_path(Root::Agent);
    let key = KeyPair::from_pem(&std::fs::read_to_string(root.with_extension("key"))?)?;
    let issuer = Issuer::from_ca_cert_pem(&std::fs::read_to_string(&root)?, key)?;
    let mut params = CertificateParams::default();
    let uri = Identity::agent("west").uri(TRUST_DOMAIN);
    params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?)];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    std::fs::write(&pair.key, key.serialize_pem())?;
    std::fs::write(&pair.cert, params.signed_by(&key, &issuer)?.pem())?;
    Ok(())
}

/// TLS 1.2 with good certificates: neither the mesh nor etcd's client port speaks it.
fn old_tls(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let (tls12, tls13) = (&rustls::version::TLS12, &rustls::version::TLS13);
        let east = house.east()?;
        let known = house.west()?.pki()?.agent_pair();
        let roots = east.pki()?.root_path(Root::Agent);
        let answer = handshake(&east.mesh(), tls12, &roots, &known).await;
        ensure!(answer.is_err(), "the mesh port speaks TLS 1.2");
        let (user, roots) = (east.user_pair(), east.pki()?.root_path(Root::Client));
        let client = format!("{}:{CLIENT_PORT}", east.address);
        handshake(&client, tls13, &roots, &user).await.context("a user of etcd")?;
        let answer = handshake(&client, tls12, &roots, &user).await;
        ensure!(answer.is_err(), "etcd speaks TLS 1.2");
        house.unharmed().await
    })
}
