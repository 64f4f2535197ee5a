//! Which cryptography is used: the only place that names a provider or a protocol version.

use std::sync::{Arc, OnceLock};

use rustls::client::WantsClientCert;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::WantsServerCert;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ConfigBuilder, ServerConfig, SupportedProtocolVersion};

/// The protocol versions that are offered and accepted.
pub const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// aws-lc-rs, shared by everything in the process.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider())).clone()
}

/// Makes the provider the default of the process, for crates that ask for one; call it first in `main`.
pub fn install() {
    // An error only says that one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Begins a client configuration.
pub fn client(
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, rustls::Error> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)?
        .dangerous()
        .with_custom_certificate_verifier(verifier))
}

/// Begins a server configuration.
pub fn server(
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, rustls::Error> {
    Ok(ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)?
        .with_client_cert_verifier(verifier))
}

/// Switches off everything that would let a client come back without showing its certificate.
pub fn without_resumption(config: &mut ServerConfig) {
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
}
