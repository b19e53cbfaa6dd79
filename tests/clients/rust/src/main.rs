use std::time::Duration;

use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_types::StatusExt;

mod palimpsest {
    tonic::include_proto!("palimpsest.v1");
}

use palimpsest::session_service_client::SessionServiceClient;
use palimpsest::{
    AppendRequest, Chunk, CreateSessionRequest, ReadConsistency, RecallRequest, Session, chunk,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address =
        std::env::var("PALIMPSEST_ADDRESS").unwrap_or_else(|_| "127.0.0.1:50051".into());
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut sessions = SessionServiceClient::new(channel);

    for _ in 0..2 {
        let session = Session { id: "from-rust".into(), ..Default::default() };
        let request = CreateSessionRequest { session: Some(session), ..Default::default() };
        match sessions.create_session(request).await {
            Ok(_) => println!("created"),
            Err(status) if status.code() == Code::AlreadyExists => {
                let info = status.get_details_error_info().ok_or("no reason")?;
                println!("{:?} {}", status.code(), info.reason);
            }
            Err(status) => return Err(status.into()),
        }
    }

    let text = "The museum is closed on Mondays.".to_string();
    let mut request = Request::new(AppendRequest {
        session: "from-rust".into(),
        request_id: "museum-1".into(),
        chunks: vec![Chunk { content: Some(chunk::Content::Text(text)), ..Default::default() }],
        ..Default::default()
    });
    request.set_timeout(Duration::from_secs(10));
    let appended = sessions.append(request).await?.into_inner();
    println!("durable up to {}", appended.positions.map_or(0, |range| range.last));

    let request = RecallRequest {
        session: "from-rust".into(),
        query: "When is the museum closed?".into(),
        consistency: Some(ReadConsistency { at_least: appended.read_token, ..Default::default() }),
        ..Default::default()
    };
    for part in sessions.recall(request).await?.into_inner().parts {
        println!("{}", part.text);
    }
    Ok(())
}
