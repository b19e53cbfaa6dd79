use prost::Message;
use prost_types::FileDescriptorSet;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=api.binpb");
    let mut api = FileDescriptorSet::decode(&*std::fs::read("api.binpb")?)?;
    for file in api.file.iter_mut().filter(|file| file.syntax() == "editions") {
        // prost reads no editions. What has one here is an enum, which is as in proto3.
        file.syntax = Some("proto3".into());
    }
    tonic_prost_build::configure().build_server(false).compile_fds(api)?;
    Ok(())
}
