//! `plimsoll docker-plugin`: each container of a Docker network becomes a tenant.
//!
//! Why: with Docker's own `network create` and `run` a container has its envelope from its first packet on.
//! From: libnetwork's remote driver protocol (`docs/remote.md` there): JSON over HTTP, on a socket that Docker finds by its name.
//! Not here: the tenants' files (`attachment`), silencing the host's end of a veth (`attach`), addresses (Docker's own IPAM).
//! Invariant: one call at a time; a call that is repeated changes nothing more, and one that makes no sense is answered with why.

mod calls;
mod endpoint;
mod records;
mod veth;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::DockerPlugin;
use crate::failure::Failure;
use calls::{Answer, Plugin};

/// Serves Docker until it is stopped.
pub(crate) fn docker_plugin(args: &DockerPlugin) -> Result<(), Failure> {
    let plugin = Plugin::new(args).map_err(|trouble| Failure::Failed(words(&trouble)))?;
    let listener = listen(&args.listen)
        .map_err(|error| Failure::io(format!("listen at {}", args.listen.display()), &error))?;
    eprintln!("plimsoll: serves Docker at {}", args.listen.display());
    let served = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| runtime.block_on(serve(listener, plugin)));
    // The next one replaces what is left there.
    let _ = fs::remove_file(&args.listen);
    served.map_err(|error| Failure::io("serve Docker", &error))
}

/// Listens where only root may connect. The socket of a plugin that was killed is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    if UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(ErrorKind::AddrInUse, "another plugin answers there; stop it first"));
    }
    let is_socket = |found: fs::Metadata| found.file_type().is_socket();
    if fs::symlink_metadata(path).is_ok_and(|found| !is_socket(found)) {
        let why = "something that is no socket is there; name another path, or remove it";
        return Err(io::Error::new(ErrorKind::AlreadyExists, why));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(listener: UnixListener, plugin: Plugin) -> io::Result<()> {
    let (mut terminated, mut interrupted) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let router = Router::new().fallback(answer).with_state(Arc::new(Mutex::new(plugin)));
    let stopped = async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    };
    tokio::select! {
        served = axum::serve(listener, router) => served,
        // Docker keeps connections open, so there is no waiting for their end.
        () = stopped => Ok(()),
    }
}

/// Answers one call. Docker sends a call again if the plugin ends meanwhile.
async fn answer(State(plugin): State<Arc<Mutex<Plugin>>>, uri: Uri, body: Bytes) -> Response {
    let call = move || {
        // A call that panicked has left nothing that a later one does not put right.
        let mut plugin = plugin.lock().unwrap_or_else(PoisonError::into_inner);
        plugin.call(uri.path(), &body)
    };
    let answer = tokio::task::spawn_blocking(call).await;
    let (status, said) = match answer {
        Ok(Answer::Done(value)) => (StatusCode::OK, value),
        Ok(Answer::Unknown) => (StatusCode::NOT_FOUND, failure("plimsoll does not know this call")),
        Ok(Answer::Senseless(why)) => (StatusCode::BAD_REQUEST, failure(&why)),
        Ok(Answer::Failed(trouble)) => {
            eprintln!("plimsoll docker-plugin: {}", words(&trouble));
            (StatusCode::INTERNAL_SERVER_ERROR, failure(&words(&trouble)))
        }
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, failure(&format!("the call was given up: {error}")))
        }
    };
    (status, [(header::CONTENT_TYPE, "application/vnd.docker.plugins.v1.1+json")], said.to_string())
        .into_response()
}

fn failure(why: &str) -> Value {
    json!({ "Err": why })
}

fn words(trouble: &crate::attachment::Trouble) -> String {
    if trouble.details.is_empty() {
        return trouble.message.clone();
    }
    format!("{}: {}", trouble.message, trouble.details)
}
