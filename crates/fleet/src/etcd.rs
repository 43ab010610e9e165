//! A directory in etcd (version 3.4 and later).
//!
//! Why: many hosts, of which some fail, need a store that is replicated, watched and leased.
//! From: etcd's API v3: ranges, transactions, watches from a revision, leases.
//! Not here: how often to try again (`agent`).
//! Invariant: no call lasts longer than its patience and [`PATIENCE`]; after an error the next call connects anew. Changes
//! are told in the order of their revisions, each once, or all keys are told at once.

use std::fs;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, EventType, GetOptions, Identity,
    LeaseKeepAliveStream, LeaseKeeper, PutOptions, TlsOptions, Txn, TxnOp, WatchOptions, WatchStream,
};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::directory::{Access, Change, Directory, DirectoryError, Keys, News, Outcome, Transaction};
use crate::object::named;

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a connection may be silent before it is probed, and how long the probe waits.
const PROBE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(3));
/// Keys that are read by one request: with values of some kilobytes its answer is below gRPC's 4 MiB.
const PAGE: i64 = 256;
/// Where fleets are, in etcd.
const ROOT: &str = "/plimsoll/";
/// The fleet of an address that names none.
const DEFAULT: &str = "default";

/// A directory in etcd.
pub struct EtcdDirectory {
    place: String,
    endpoints: Vec<String>,
    /// The member that is asked.
    member: usize,
    prefix: String,
    access: Access,
    runtime: Runtime,
    client: Option<Client>,
    watch: Option<WatchStream>,
    /// The revision and the cluster of what was last told.
    told: Option<(i64, u64)>,
    lease: Option<Lease>,
    /// Bytes of keys and values that came and went, for whoever measures them.
    pub traffic: Traffic,
}

/// What passed between this client and etcd: payload, without gRPC's and TCP's headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Keys and values that etcd told.
    pub told: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Requests that were made.
    pub requests: u64,
}

/// The lease that a kept key hangs on.
struct Lease {
    id: i64,
    span: Duration,
    kept: Vec<u8>,
    stream: Option<(LeaseKeeper, LeaseKeepAliveStream)>,
}

/// A connection to a member that answers, the one that is asked first. A client of all members at once fails whenever it picks one that is
/// down.
async fn reach(
    endpoints: &[String],
    member: &mut usize,
    options: Option<ConnectOptions>,
) -> Result<Client, Error> {
    if let [only] = endpoints {
        return Client::connect([only], options).await;
    }
    let mut failed = Error::IoError(std::io::Error::from(std::io::ErrorKind::TimedOut));
    for _ in endpoints {
        let answers = async {
            let mut client = Client::connect([&endpoints[*member]], options.clone()).await?;
            client.status().await?;
            Ok(client)
        };
        match timeout(PATIENCE / 3, answers).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => failed = error,
            Err(_) => {}
        }
        *member = (*member + 1) % endpoints.len();
    }
    Err(failed)
}

impl EtcdDirectory {
    /// The fleet at these URLs, separated by commas; the last one's path is the fleet's name.
    ///
    /// # Errors
    /// [`DirectoryError::Place`].
    pub fn new(place: &str, access: &Access) -> Result<Self, DirectoryError> {
        let wrong = |why: String| DirectoryError::Place { place: place.to_owned(), why };
        let mut endpoints: Vec<String> = place.split(',').map(str::to_owned).collect();
        let last =
            endpoints.last_mut().filter(|last| !last.is_empty()).ok_or_else(|| wrong("no URL".to_owned()))?;
        let fleet = match last.match_indices('/').nth(2) {
            Some((at, _)) => last.split_off(at).trim_matches('/').to_owned(),
            None => String::new(),
        };
        let fleet = if fleet.is_empty() { DEFAULT.to_owned() } else { fleet };
        named(&fleet, "fleet").map_err(wrong)?;
        let secure = endpoints.iter().filter(|url| url.starts_with("https://")).count();
        if secure != 0 && secure != endpoints.len() {
            return Err(wrong("some of its URLs are https, and others are not".to_owned()));
        }
        if secure != 0 && access.ca.is_none() {
            return Err(wrong(
                "https needs the authority that signed the servers' certificates: `--ca FILE`".to_owned(),
            ));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self {
            place: place.to_owned(),
            endpoints,
            member: 0,
            prefix: format!("{ROOT}{fleet}/"),
            access: access.clone(),
            runtime: runtime.map_err(|error| wrong(error.to_string()))?,
            client: None,
            watch: None,
            told: None,
            lease: None,
            traffic: Traffic::default(),
        })
    }

    fn options(&self) -> Result<ConnectOptions, DirectoryError> {
        let read = |path: &std::path::Path| {
            fs::read(path).map_err(|error| {
                let why = format!("{}: {error}", path.display());
                DirectoryError::Place { place: self.place.clone(), why }
            })
        };
        let mut options = ConnectOptions::new()
            .with_connect_timeout(PATIENCE)
            .with_keep_alive(PROBE.0, PROBE.1)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if let Some(ca) = self.access.ca.as_ref().filter(|_| self.place.starts_with("https://")) {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
            if let Some((certificate, key)) = &self.access.identity {
                tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            options = options.with_tls(tls);
        }
        if let Some((user, password)) = &self.access.user {
            let password = String::from_utf8_lossy(&read(password)?).trim_end().to_owned();
            options = options.with_user(user, password);
        }
        Ok(options)
    }

    /// Makes a request, on a new connection where there is none.
    fn call<T>(
        &mut self,
        ask: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Result<T, DirectoryError> {
        let options = if self.client.is_none() { Some(self.options()?) } else { None };
        self.traffic.requests += 1;
        let (client, endpoints, member) = (&mut self.client, &self.endpoints, &mut self.member);
        let asked = async {
            let client = match client {
                Some(client) => client,
                None => client.insert(reach(endpoints, member, options).await?),
            };
            ask(client).await
        };
        let answer = self.runtime.block_on(async { timeout(PATIENCE, asked).await });
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.lost(&error)),
            Err(_) => Err(self.gone(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }

    fn gone(&mut self, why: String) -> DirectoryError {
        (self.client, self.watch) = (None, None);
        self.member = (self.member + 1) % self.endpoints.len();
        if let Some(lease) = &mut self.lease {
            lease.stream = None;
        }
        DirectoryError::Unreachable { place: self.place.clone(), why }
    }

    fn lost(&mut self, error: &Error) -> DirectoryError {
        use etcd_client::Error::GRpcStatus;
        let refused = match error {
            // Codes of gRPC that another try does not mend: invalid argument, permission denied, unauthenticated.
            GRpcStatus(status) => matches!(status.code() as i32, 3 | 7 | 16),
            _ => false,
        };
        let why = match error {
            GRpcStatus(status) => status.message().to_owned(),
            other => other.to_string(),
        };
        match self.gone(why) {
            DirectoryError::Unreachable { place, why } if refused => DirectoryError::Refused { place, why },
            other => other,
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// All keys, as of one revision.
    fn all(&mut self) -> Result<Keys, DirectoryError> {
        let prefix = self.prefix.clone();
        // The first key behind all that begin with the prefix: `0` follows `/`.
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let (mut from, mut revision, mut keys) = (prefix.clone(), 0, Keys::new());
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
            let next = from.clone();
            let page = self.call(async move |client| client.get(next, Some(options)).await)?;
            let (at, cluster) =
                page.header().map_or((0, 0), |header| (header.revision(), header.cluster_id()));
            if revision == 0 {
                (revision, self.told) = (at, Some((at, cluster)));
            }
            for pair in page.kvs() {
                self.traffic.told += 1;
                self.traffic.bytes += (pair.key().len() + pair.value().len()) as u64;
                let full = String::from_utf8_lossy(pair.key()).into_owned();
                if let Some(key) = full.strip_prefix(&prefix) {
                    keys.insert(key.to_owned(), pair.value().to_vec());
                }
                from = full + "\0";
            }
            if !page.more() || page.kvs().is_empty() {
                return Ok(keys);
            }
        }
    }

    /// All keys as news; a watch begins behind them.
    fn anew(&mut self) -> Result<News, DirectoryError> {
        self.watch = None;
        Ok(News::All(self.all()?))
    }

    fn open_watch(&mut self, revision: i64) -> Result<(), DirectoryError> {
        let options =
            WatchOptions::new().with_prefix().with_start_revision(revision + 1).with_progress_notify();
        let prefix = self.prefix.clone();
        self.watch = Some(self.call(async move |client| client.watch(prefix, Some(options)).await)?);
        Ok(())
    }
}

impl Directory for EtcdDirectory {
    fn place(&self) -> &str {
        &self.place
    }

    fn read(&mut self) -> Result<Keys, DirectoryError> {
        let told = self.told;
        let keys = self.all();
        // Reading tells no news: a watch goes on where it was.
        self.told = told;
        keys
    }

    fn wait(&mut self, patience: Duration) -> Result<News, DirectoryError> {
        let Some((revision, cluster)) = self.told else { return self.anew() };
        if self.watch.is_none() {
            self.open_watch(revision)?;
        }
        let Some(watch) = &mut self.watch else { return Ok(News::Changes(Vec::new())) };
        let message = self.runtime.block_on(async { timeout(patience, watch.message()).await });
        let message = match message {
            Err(_) => return Ok(News::Changes(Vec::new())),
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => return Err(self.gone("it ended the watch".to_owned())),
            Ok(Err(error)) => return Err(self.lost(&error)),
        };
        let (at, of) =
            message.header().map_or((revision, cluster), |header| (header.revision(), header.cluster_id()));
        // Compacted away; or another store, as after a restore from a backup.
        if message.canceled() || of != cluster || at < revision {
            return self.anew();
        }
        self.told = Some((at.max(revision), cluster));
        let mut changes = Vec::new();
        for event in message.events() {
            let Some(pair) = event.kv() else { continue };
            self.traffic.told += 1;
            self.traffic.bytes += (pair.key().len() + pair.value().len()) as u64;
            let full = String::from_utf8_lossy(pair.key());
            let Some(key) = full.strip_prefix(&self.prefix) else { continue };
            let value = (event.event_type() == EventType::Put).then(|| pair.value().to_vec());
            changes.push(Change { key: key.to_owned(), value });
        }
        Ok(News::Changes(changes))
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<Outcome, DirectoryError> {
        let conditions = transaction.conditions.iter().map(|(key, value)| match value {
            Some(value) => Compare::value(self.key(key), CompareOp::Equal, value.clone()),
            None => Compare::version(self.key(key), CompareOp::Equal, 0),
        });
        let changes = transaction.changes.iter().map(|Change { key, value }| match value {
            Some(value) => TxnOp::put(self.key(key), value.clone(), None),
            None => TxnOp::delete(self.key(key), None),
        });
        let conditions: Vec<Compare> = conditions.collect();
        let txn = Txn::new().when(conditions).and_then(changes.collect::<Vec<TxnOp>>());
        let answer = self.call(async move |client| client.txn(txn).await)?;
        Ok(if answer.succeeded() { Outcome::Done } else { Outcome::Conflict })
    }

    fn keep(&mut self, key: &str, value: &[u8], lease: Duration) -> Result<(), DirectoryError> {
        let key = self.key(key);
        let mut held = self.lease.take().filter(|held| held.span == lease);
        if let Some(old) = held.take() {
            let Lease { id, stream, kept, .. } = old;
            let renewed = self.call(async move |client| {
                let (mut keeper, mut answers) = match stream {
                    Some(stream) => stream,
                    None => match client.lease_keep_alive(id).await {
                        // So the library says that etcd does not know the lease.
                        Err(Error::LeaseKeepAliveError(_)) => return Ok(None),
                        stream => stream?,
                    },
                };
                keeper.keep_alive().await?;
                let left = answers.message().await?.map_or(0, |answer| answer.ttl());
                Ok((left > 0).then_some((keeper, answers)))
            });
            match renewed {
                Ok(Some(stream)) => held = Some(Lease { id, span: lease, kept, stream: Some(stream) }),
                Ok(None) => {} // it has ended
                Err(error) => {
                    // It may still hold when etcd is back.
                    self.lease = Some(Lease { id, span: lease, kept, stream: None });
                    return Err(error);
                }
            }
        }
        let mut held = match held {
            Some(held) => held,
            None => {
                let seconds = i64::try_from(lease.as_secs().max(1)).unwrap_or(i64::MAX);
                let granted = self.call(async move |client| client.lease_grant(seconds, None).await)?;
                Lease { id: granted.id(), span: lease, kept: Vec::new(), stream: None }
            }
        };
        if held.kept != value {
            let (bytes, options) = (value.to_vec(), PutOptions::new().with_lease(held.id));
            let put = self.call(async move |client| client.put(key, bytes, Some(options)).await);
            if put.is_ok() {
                held.kept = value.to_vec();
            }
            self.lease = Some(held);
            return put.map(|_| ());
        }
        self.lease = Some(held);
        Ok(())
    }

    fn drop_kept(&mut self, key: &str) -> Result<(), DirectoryError> {
        self.lease = None;
        let key = self.key(key);
        self.call(async move |client| client.delete(key, None).await).map(|_| ())
    }
}
