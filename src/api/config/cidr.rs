//! Blocks of addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A block of addresses such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    network: IpAddr,
    bits: u8,
}

/// Why a text is not a block of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a block of addresses such as 10.0.0.0/8 or fd00::/8, without bits after the prefix")]
pub struct CidrError(String);

/// An address as a number at the top of 128 bits, and how many bits it has.
fn bits_of(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

impl Cidr {
    /// Whether the address is in the block. An IPv4 address inside IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (address, width) = bits_of(address.to_canonical());
        let (network, own) = bits_of(self.network);
        width == own && address & mask(self.bits) == network
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parse = || {
            let (network, bits) = text.split_once('/')?;
            let (network, bits): (IpAddr, u8) = (network.parse().ok()?, bits.parse().ok()?);
            let (number, width) = bits_of(network);
            // Bits after the prefix are a typing error more often than an intention.
            (bits <= width && number & mask(bits) == number).then_some(Self { network, bits })
        };
        parse().ok_or_else(|| CidrError(text.to_owned()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_contain_what_they_should() {
        let inside = |block: &str, address: &str| {
            block.parse::<Cidr>().unwrap().contains(address.parse::<IpAddr>().unwrap())
        };
        assert!(inside("127.0.0.0/8", "127.0.2.1") && !inside("127.0.0.0/8", "128.0.0.1"));
        assert!(inside("127.0.0.0/8", "::ffff:127.0.0.1") && !inside("0.0.0.0/0", "::1"));
        assert!(inside("10.1.2.3/32", "10.1.2.3") && !inside("10.1.2.3/32", "10.1.2.2"));
        assert!(inside("fd00::/8", "fdab::1") && inside("::/0", "fe80::1") && !inside("::/0", "10.0.0.1"));
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.1/8", "::/129", "x/8", "10.0.0.0/-1"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
        assert_eq!("fd00::/8".parse::<Cidr>().unwrap().to_string(), "fd00::/8");
    }
}
