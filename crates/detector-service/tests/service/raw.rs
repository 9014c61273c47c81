//! A client with handwritten messages.

use super::{SIDE, WAIT};
use std::net::TcpStream;
use std::time::Duration;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_hdf5::ElementType;
use varve_detector_service::{Service, StartRequest};
use varve_detector_stream::client::Outgoing;
use varve_detector_stream::link::{Incoming, send_to_service};
use varve_detector_stream::{
    BodyChecksum, FrameHead, FromService, NoticeCode, StreamHello, StreamRole, ToService, VERSION, level_bit,
};

/// A connection with handwritten messages.
pub struct Raw {
    socket: TcpStream,
    incoming: Incoming,
}

impl Raw {
    pub fn connect(service: &Service, start: &StartRequest, patience: Option<Duration>) -> Raw {
        Raw::one_of(service, start, patience, (0, 1))
    }

    /// Connection `number` of several.
    pub fn one_of(
        service: &Service,
        start: &StartRequest,
        patience: Option<Duration>,
        (connection, connections): (u16, u16),
    ) -> Raw {
        let mut socket = TcpStream::connect(service.address()).expect("connected");
        socket.set_read_timeout(Some(WAIT)).expect("set");
        let hello = StreamHello {
            version: VERSION,
            newest: 0,
            role: StreamRole::Frames,
            checksum: BodyChecksum::Crc32,
            levels: level_bit(AckLevel::Durable),
            source: 0,
            connection,
            connections,
            patience,
            client: [9; 16],
            run: start.name.clone(),
            token: String::new(),
            start: serde_json::to_string(start).expect("JSON"),
        };
        send_to_service(&mut socket, &ToService::Hello(hello), &[], 0).expect("said");
        let incoming = Incoming::new(socket.try_clone().expect("a second handle"));
        let mut raw = Raw { socket, incoming };
        assert!(matches!(raw.next(), FromService::Welcome(_)));
        raw
    }

    pub fn frame(&mut self, out: &Outgoing, sum: Option<u64>) {
        self.say_frame(out, sum, false);
    }

    /// Sends a frame again.
    pub fn frame_again(&mut self, out: &Outgoing) {
        self.say_frame(out, None, true);
    }

    fn say_frame(&mut self, out: &Outgoing, sum: Option<u64>, again: bool) {
        let head = FrameHead {
            number: out.number,
            taken: 0,
            element: out.element,
            frames: 1,
            sides: out.sides.clone(),
            filter: String::new(),
            chunks: Vec::new(),
        };
        let sum = sum.unwrap_or_else(|| BodyChecksum::Crc32.of(&out.parts[0]));
        send_to_service(&mut self.socket, &ToService::Frame { head, again }, &[&out.parts[0]], sum).expect("said");
    }

    /// Sends the chunks of `frames` frames that share them.
    pub fn chunk_group(&mut self, number: u64, frames: u32, chunks: &[Vec<u8>]) {
        let head = FrameHead {
            number,
            taken: 0,
            element: ElementType::U16,
            frames,
            sides: vec![SIDE as u32, SIDE as u32],
            filter: "bslz4".into(),
            chunks: chunks.iter().map(|chunk| chunk.len() as u32).collect(),
        };
        let body = chunks.concat();
        let sum = BodyChecksum::Crc32.of(&body);
        send_to_service(&mut self.socket, &ToService::Frame { head, again: false }, &[&body], sum).expect("said");
    }

    pub fn next(&mut self) -> FromService {
        self.incoming.from_service().expect("an answer").expect("not the end")
    }

    pub fn notice(&mut self) -> (NoticeCode, u64) {
        loop {
            match self.next() {
                FromService::Notice(notice) => return (notice.code, notice.frame),
                FromService::Ack(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn end(&mut self, complete: bool, lost: u64) {
        send_to_service(&mut self.socket, &ToService::End { complete, lost }, &[], 0).expect("said");
    }

    pub fn finish(&mut self) -> varve_detector_stream::FinishedHead {
        self.end(true, 2);
        self.finished()
    }

    pub fn finished(&mut self) -> varve_detector_stream::FinishedHead {
        loop {
            match self.next() {
                FromService::Finished(finished) => return finished,
                FromService::Ack(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}
