//! Caches a connector while its settings and files stay the same.
//!
//! Building one reads all authorities of the system (OpenSSL offers no way around it), which takes tens of milliseconds, and
//! a starting relay opens several connections.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use postgres_openssl::MakeTlsConnector;

use super::{TlsError, connector};
use crate::options::{Tls, TlsMode};

/// For how long the authorities of the system are trusted before they are read again.
const SYSTEM_CACHED_FOR: Duration = Duration::from_secs(600);

/// The connector that was built last.
#[derive(Default)]
pub(crate) struct CachedConnector(Mutex<Option<Cached>>);

struct Cached {
    connector: MakeTlsConnector,
    tls: Tls,
    contents: Vec<Option<Vec<u8>>>,
    built: Instant,
}

impl CachedConnector {
    /// A connector for these settings and the present content of their files.
    pub(crate) fn get(&self, tls: &Tls) -> Result<MakeTlsConnector, TlsError> {
        let contents = contents(tls);
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cached.as_ref().filter(|cached| cached.is_for(tls, &contents)) {
            return Ok(cached.connector.clone());
        }
        let connector = connector(tls)?;
        *cached =
            Some(Cached { connector: connector.clone(), tls: tls.clone(), contents, built: Instant::now() });
        Ok(connector)
    }
}

impl Cached {
    fn is_for(&self, tls: &Tls, contents: &[Option<Vec<u8>>]) -> bool {
        let system = tls.root_cert.is_none() && matches!(tls.mode, TlsMode::VerifyCa | TlsMode::VerifyFull);
        // OpenSSL reads the lists of a folder when it needs them, and never again.
        tls.crl_dir.is_none()
            && self.tls == *tls
            && self.contents == contents
            && (!system || self.built.elapsed() < SYSTEM_CACHED_FOR)
    }
}

/// `None` for a file that is not set, or that cannot be read: building the connector reports that.
fn contents(tls: &Tls) -> Vec<Option<Vec<u8>>> {
    let read = |path: &Option<PathBuf>| path.as_ref().and_then(|path| fs::read(path).ok());
    [&tls.root_cert, &tls.client_cert, &tls.client_key, &tls.crl].map(read).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(cached: &CachedConnector) -> Instant {
        cached.0.lock().unwrap().as_ref().unwrap().built
    }

    #[test]
    fn a_connector_is_built_again_only_after_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let cached = CachedConnector::default();
        let mut tls = Tls::new(TlsMode::Prefer);
        cached.get(&tls).unwrap();
        let first = built(&cached);
        cached.get(&tls).unwrap();
        assert_eq!(built(&cached), first, "nothing has changed");
        tls.names_host = false;
        cached.get(&tls).unwrap();
        let second = built(&cached);
        assert_ne!(second, first, "a setting has changed");
        tls.crl_dir = Some(folder.path().to_owned());
        cached.get(&tls).unwrap();
        let third = built(&cached);
        cached.get(&tls).unwrap();
        assert_ne!(built(&cached), third, "a folder of revocation lists is read at each connect");
    }

    #[test]
    fn the_authorities_of_the_system_are_read_again_after_a_while() {
        let cached = CachedConnector::default();
        for (mode, again) in [(TlsMode::Require, false), (TlsMode::VerifyFull, true)] {
            let tls = Tls::new(mode);
            cached.get(&tls).unwrap();
            let long_ago = Instant::now().checked_sub(SYSTEM_CACHED_FOR).unwrap();
            cached.0.lock().unwrap().as_mut().unwrap().built = long_ago;
            cached.get(&tls).unwrap();
            assert_eq!(built(&cached) != long_ago, again, "{mode:?}");
        }
    }
}
