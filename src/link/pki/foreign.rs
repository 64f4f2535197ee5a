//! Peers of an etcd that quorate did not create (ADR 4). Its CA vouches for both sides as long as it is adopted: our
//! members show certificates of that CA, and believe it beside the roots of the sites.
//!
//! Keys are made where they are used and stay there; a request carries the public half to the CA.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{CertificateSigningRequestParams, KeyPair, PublicKeyData as _};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::extensions::GeneralName;

use super::authority::{Authority, load_key};
use super::leaf::{self, Leaf};
use super::{Error, Pair, SitePki};
use crate::clock::{self, Clock};
use crate::durable::{PRIVATE, PUBLIC, write_file};
use crate::identity;
use crate::tls::{crypto, pem};

/// The trust in the peers of one foreign etcd, as files of one federation; cheap to clone.
#[derive(Debug, Clone)]
pub struct ForeignPeers {
    pki: SitePki,
    folder: PathBuf,
}

impl ForeignPeers {
    /// Uses a folder; it need not exist yet.
    pub fn new(pki: SitePki, folder: PathBuf) -> Self {
        Self { pki, folder }
    }

    fn root_path(&self) -> PathBuf {
        self.folder.join("peer-ca.crt")
    }

    /// Whether a foreign CA is trusted now. Kept as a file, so that it holds before anything else is known.
    pub fn active(&self) -> bool {
        self.root_path().exists()
    }

    /// Begins to trust these roots, or none any more; whether that was a change.
    pub fn trust(&self, roots: Option<&str>) -> Result<bool, Error> {
        let path = self.root_path();
        if let Some(text) = roots {
            pem::roots(&path, text.as_bytes())?;
            return Ok(write_file(&path, text.as_bytes(), PUBLIC)?);
        }
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::Read(pem::Error::Io { path, source })),
        }
    }

    /// All that our peer ports trust: the peer roots of `sites`, and the foreign ones while they are trusted.
    pub fn peer_bundle<S: AsRef<str>>(&self, sites: &[S]) -> Result<String, Error> {
        let mut bundle = self.pki.trust().peer_bundle(sites)?;
        if self.active() {
            bundle.push_str(&String::from_utf8_lossy(&pem::read(&self.root_path())?));
        }
        Ok(bundle)
    }

    /// A file with all that vouches for the peer ports of one site: its own root and the foreign ones.
    pub fn site_roots(&self, site: &str) -> Result<PathBuf, Error> {
        let bundle = self.peer_bundle(&[site])?;
        let path = self.folder.join(format!("roots-{site}.crt"));
        write_file(&path, bundle.as_bytes(), PUBLIC)?;
        Ok(path)
    }

    /// The certificate with which the agent looks at peer ports.
    pub fn probe_pair(&self) -> Pair {
        Pair::at(&self.folder, "probe")
    }

    /// What to ask the CA for: none if the pair is good and not due. A key that is not certified yet is kept for it.
    pub fn request(&self, leaf: &Leaf, pair: &Pair) -> Result<Option<String>, Error> {
        let now = Clock::wall();
        if self.usable(leaf, pair) && !super::needs_renewal(&pair.cert)? {
            return Ok(None);
        }
        let next = next_key(pair);
        let make = |source| Error::Make { path: pair.cert.clone(), source };
        let key = if next.exists() {
            load_key(&Pair { cert: pair.cert.clone(), key: next })?
        } else {
            let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(make)?;
            write_file(&next, key.serialize_pem().as_bytes(), PRIVATE)?;
            key
        };
        let params = leaf::params(leaf, &self.pki, now)?;
        // Signatures differ each time: who signs by hand must find the request that lies there already.
        let kept = pair.cert.with_extension("csr");
        if let Ok(text) = fs::read_to_string(&kept)
            && let Ok(old) = CertificateSigningRequestParams::from_pem(&text)
            && old.public_key.der_bytes() == key.der_bytes()
            && old.params.subject_alt_names == params.subject_alt_names
        {
            return Ok(Some(text));
        }
        let request = params.serialize_request(&key).and_then(|request| request.pem()).map_err(make)?;
        write_file(&kept, request.as_bytes(), PUBLIC)?;
        Ok(Some(request))
    }

    /// Whether the pair can be used now, due or not.
    pub fn usable(&self, leaf: &Leaf, pair: &Pair) -> bool {
        let good = || -> Result<(), Error> {
            let chain = pem::read(&pair.cert)?;
            fits(leaf, (&pair.cert, &chain), &load_key(pair)?, &self.roots()?, Clock::wall())
        };
        good().is_ok()
    }

    /// Takes the certificate (chain) for the last request; what does not fit is refused and changes nothing.
    pub fn install(&self, leaf: &Leaf, pair: &Pair, chain: &str) -> Result<(), Error> {
        let next = next_key(pair);
        let key = load_key(&Pair { cert: pair.cert.clone(), key: next.clone() })?;
        fits(leaf, (&pair.cert, chain.as_bytes()), &key, &self.roots()?, Clock::wall())?;
        write_file(&pair.key, key.serialize_pem().as_bytes(), PRIVATE)?;
        write_file(&pair.cert, chain.as_bytes(), PUBLIC)?;
        // Left behind it would only be asked about once more.
        fs::remove_file(&next).map_err(|source| Error::Read(pem::Error::Io { path: next, source }))
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        let path = self.root_path();
        Ok(pem::roots(&path, &pem::read(&path)?)?)
    }

    /// Certifies a request with the key of the foreign CA, for a leaf of `site`. The names come from the leaf, only the
    /// public key from the request.
    pub fn certify(&self, ca: &Pair, site: &str, leaf: &Leaf, request: &str) -> Result<String, Error> {
        let now = Clock::wall();
        let make = |source| Error::Make { path: ca.cert.clone(), source };
        let authority = Authority::load(ca)?;
        let request = CertificateSigningRequestParams::from_pem(request).map_err(make)?;
        let theirs = self.pki.of_site(site);
        let mut params = leaf::params(leaf, &theirs, now)?;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&request.public_key, &authority.issuer).map_err(make)?;
        let mut chain = certificate.pem();
        let own = identity::parse(&authority.certificate)?;
        if own.subject() != own.issuer() {
            // An intermediate: whoever knows only its root needs the way up.
            chain.push_str(&String::from_utf8_lossy(&pem::read(&ca.cert)?));
        }
        let der = pem::certificates(&ca.cert, chain.as_bytes())?;
        vouched(leaf, &ca.cert, &der, &self.roots()?, now)?;
        Ok(chain)
    }
}

fn next_key(pair: &Pair) -> PathBuf {
    pair.key.with_extension("key.next")
}

/// Whether a chain is good for a leaf: our key, a root that is trusted, its time, and for a server the host's name.
fn fits(
    leaf: &Leaf,
    (path, text): (&Path, &[u8]),
    key: &KeyPair,
    roots: &RootCertStore,
    now: SystemTime,
) -> Result<(), Error> {
    let unfit = |why: &str| Error::Unfit { path: path.to_owned(), why: why.to_owned() };
    let chain = pem::certificates(path, text)?;
    let first = chain.first().ok_or(identity::Error::Certificate)?;
    let found = identity::parse(first)?;
    if found.public_key().raw != key.subject_public_key_info() {
        return Err(unfit("it is for another key than the one that was made for it"));
    }
    vouched(leaf, path, &chain, roots, now)?;
    let names = found.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let dns: Vec<&str> = names
        .filter_map(|name| if let GeneralName::DNSName(name) = name { Some(*name) } else { None })
        .collect();
    let missing = match leaf {
        Leaf::PeerServer { hosts, .. } => hosts.iter().find(|host| !dns.contains(&host.as_str())),
        _ => None,
    };
    if let Some(host) = missing {
        return Err(unfit(&format!("it does not name {host}; let the CA keep the names of the request")));
    }
    match leaf {
        // etcd would compare the name with the source address, which breaks behind any address translation.
        Leaf::PeerClient { .. } | Leaf::Probe { .. } if !dns.is_empty() => {
            Err(unfit("a client certificate must have no DNS name; let the CA keep the names of the request"))
        }
        _ => Ok(()),
    }
}

/// Whether one of the roots vouches for a chain, for the side that the leaf is for.
fn vouched(
    leaf: &Leaf,
    path: &Path,
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    now: SystemTime,
) -> Result<(), Error> {
    let unfit = |error: &dyn std::fmt::Display| Error::Unfit {
        path: path.to_owned(),
        why: format!("the roots in spec.adopt.peerCA do not vouch for it ({error})"),
    };
    let (first, rest) = chain.split_first().ok_or(identity::Error::Certificate)?;
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(clock::seconds(now)));
    if matches!(leaf, Leaf::PeerServer { .. }) {
        let parsed = ParsedCertificate::try_from(first).map_err(|error| unfit(&error))?;
        let algorithms = crypto::provider().signature_verification_algorithms.all;
        return verify_server_cert_signed_by_trust_anchor(&parsed, roots, rest, now, algorithms)
            .map_err(|error| unfit(&error));
    }
    let trusted = std::sync::Arc::new(roots.clone());
    let verifier = WebPkiClientVerifier::builder_with_provider(trusted, crypto::provider())
        .build()
        .map_err(|error| unfit(&error))?;
    verifier.verify_client_cert(first, rest, now).map(drop).map_err(|error| unfit(&error))
}
