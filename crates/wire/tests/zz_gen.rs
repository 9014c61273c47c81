use varve_wire::handshake::exchange::*; use varve_wire::handshake::*;
#[test] fn gen_golden() {
    let b = Binding{volume:[1;16],key:KeyId::VOLUME,purpose:Purpose::Work,session:3,worker:0,channel:Channel::Network,nonce:[5;16]};
    let k = VolumeKey([7;32]);
    let (i, sealed) = Initiator::begin(&k,&b,&Offer::default()).unwrap();
    let (r,_) = Responder::accept(&k,&b,&sealed).unwrap();
    let hello = Hello{version:varve_wire::VERSION,volume:[1;16],key:KeyId::VOLUME,purpose:Purpose::Work,session:3,worker:0,sealed};
    let w = Welcome::Accepted{server:0x1122334455667788,shards:4,inline_limit:65536,sync_interval_ms:50,owner_uid:1000,owners:vec![0,1,0,1],workers:vec![WorkerAddress{unix:Some("/run/varve/x.0.sock".into()),tcp:None},WorkerAddress{unix:None,tcp:Some("host:7001".into())}],embedded:false};
    let (answer,_) = r.finish(&w).unwrap(); drop(i);
    let put = |dir:&str,name:&str,tag:u8,body:Vec<u8>| { let d=format!("../../fuzz/corpus/{dir}"); std::fs::create_dir_all(&d).unwrap(); std::fs::write(format!("{d}/{name}"), [vec![tag],body].concat()).unwrap(); };
    let p = |m:&dyn Fn()->Vec<u8>| m();
    put("wire","golden-hello",b'H',p(&||postcard::to_stdvec(&hello).unwrap()));
    put("wire","golden-welcome",b'W',postcard::to_stdvec(&w).unwrap());
    put("wire","golden-answer",b'A',postcard::to_stdvec(&Answer::Sealed(answer.clone())).unwrap());
    put("wire","golden-refused",b'A',postcard::to_stdvec(&Answer::Refused{reason:"another key".into()}).unwrap());
    put("wire","golden-greeting",b'G',postcard::to_stdvec(&Greeting{version:varve_wire::VERSION,volume:[1;16],nonce:[5;16]}).unwrap());
    put("handshake","golden-hello",b'H',postcard::to_stdvec(&hello).unwrap());
    put("handshake","golden-crowded",b'A',postcard::to_stdvec(&Answer::Crowded{reason:"try again".into()}).unwrap());
    put("handshake","answer-to-another",b'A',postcard::to_stdvec(&Answer::Sealed(answer)).unwrap());
    put("record","golden-pieces",b'S',[&[6u8][..],b"bytes that go in records and arrive in pieces"].concat());
    put("record","golden-changed",b'X',[&[0u8,9,1][..],b"bytes of which one is changed"].concat());
    put("record","noise",b'R',vec![17,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]);
}
