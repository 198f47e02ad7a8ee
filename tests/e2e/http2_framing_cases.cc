// h2spec's group "http2", sections 3 to 5, 7 and 8: the connection, the states
// of streams, and requests.

#include <string>
#include <vector>

#include "tests/e2e/http2_conformance.h"

namespace recurve::http2 {
namespace {

constexpr int kWhole = kEndHeaders | kEndStream;

// A call whose answer waits for window: its stream is half-closed (remote).
Step HalfClosed() {
  return {Settings(Setting(kInitialWindowSize, 0)) + Call(), Head()};
}
// A stream that the client has closed, too.
Step Closed() { return {Call(), Served()}; }

// A request that is malformed for what its head is.
Case Malformed(const std::string& section, const std::string& name,
               const std::string& head) {
  return {section,
          name,
          {{HeadersFrame(head) + Message(), StreamError({kProtocolError})}}};
}

std::string UnknownFrame() {
  return Frame(kUnknownType, 0, 0, std::string(8, '\0'));
}

// More than a frame may have, of headers that are well formed.
std::string LongHead() {
  std::string head = CallHead();
  while (head.size() <= 16384) head += Header("x-dummy", std::string(100, 'x'));
  return head;
}

// A message that is a frame of the largest size: a field of bytes that the
// request does not know.
std::string LongMessage() {
  const std::string message = "\x7a\xf8\x7f" + std::string(16384 - 5 - 3, 'x');
  return Bytes("\0") + BigEndian(static_cast<uint32_t>(message.size()), 4) +
         message;
}

}  // namespace

std::vector<Case> FramingCases() {
  const std::string head = CallHead();
  const std::string dummy = Header("x-dummy", "x");
  const std::string ok = Header("x-test", "ok");
  return {
      {"3.5",
       "ServerPrefaceIsItsFirstFrame",
       {{kMagic + Settings(Setting(kInitialWindowSize, 65535)),
         ServerSettings()}},
       /*after_preface=*/false},
      {"3.5",
       "InvalidPreface",
       {{"INVALID CONNECTION PREFACE\r\n\r\n",
         ConnectionError({kProtocolError})}},
       /*after_preface=*/false},

      {"4.1", "UnknownType", {{UnknownFrame() + Ping(), Pong()}}},
      {"4.1", "UndefinedFlags", {{Ping(0x16), Pong()}}},
      {"4.1", "ReservedBit", {{Ping(0x16, 1U << 31), Pong()}}},
      {"4.2",
       "DataOfTheLargestSize",
       {{Open() + DataFrame(LongMessage(), kEndStream), Served()}}},
      {"4.2",
       "DataThatIsTooLarge",
       {{Open() + DataFrame(std::string(16385, 'x'), kEndStream),
         StreamError({kFrameSizeError})}}},
      {"4.2",
       "HeadersThatAreTooLarge",
       {{HeadersFrame(LongHead(), kWhole),
         ConnectionError({kFrameSizeError})}}},
      {"4.3",
       "InvalidFragment",
       {{HeadersFrame("\x40", kWhole), ConnectionError({kCompressionError})}}},
      {"4.3",
       "PriorityWithinAHead",
       {{HeadersFrame(head, 0) + Priority() + Continuation(dummy),
         ConnectionError({kProtocolError})}}},
      {"4.3",
       "HeadersOfAnotherStreamWithinAHead",
       {{HeadersFrame(head, 0) + HeadersFrame(head, kWhole, 3) +
             Continuation(dummy),
         ConnectionError({kProtocolError})}}},

      // Section 6.1 has the second error for it.
      {"5.1",
       "DataOnIdleStream",
       {{Message(), StreamError({kProtocolError, kStreamClosed})}}},
      {"5.1",
       "ResetOnIdleStream",
       {{Reset(), ConnectionError({kProtocolError})}}},
      {"5.1",
       "WindowUpdateOnIdleStream",
       {{WindowUpdate(1, 100), ConnectionError({kProtocolError})}}},
      {"5.1",
       "ContinuationOnIdleStream",
       {{Continuation(head), ConnectionError({kProtocolError})}}},
      {"5.1",
       "DataOnHalfClosedStream",
       {HalfClosed(), {Message(), StreamError({kStreamClosed})}}},
      {"5.1",
       "HeadersOnHalfClosedStream",
       {HalfClosed(),
        {HeadersFrame(head, kWhole), StreamError({kStreamClosed})}}},
      {"5.1",
       "ContinuationOnHalfClosedStream",
       {HalfClosed(),
        {Continuation(head), StreamError({kStreamClosed, kProtocolError})}}},
      {"5.1",
       "DataAfterReset",
       {{Open() + Reset() + Message(), StreamError({kStreamClosed})}}},
      {"5.1",
       "HeadersAfterReset",
       {{Open() + Reset() + HeadersFrame(head, kWhole),
         StreamError({kStreamClosed})}}},
      {"5.1",
       "ContinuationAfterReset",
       {{Open() + Reset() + Continuation(dummy),
         StreamError({kStreamClosed, kProtocolError})}}},
      {"5.1",
       "DataOnClosedStream",
       {Closed(), {Message(), StreamError({kStreamClosed})}}},
      {"5.1",
       "HeadersOnClosedStream",
       {Closed(),
        {HeadersFrame(head, kWhole), ConnectionError({kStreamClosed})}}},
      {"5.1",
       "ContinuationOnClosedStream",
       {Closed(),
        {Continuation(dummy),
         ConnectionError({kStreamClosed, kProtocolError})}}},
      // No case of h2spec: the client did not know yet. The head still counts
      // for the compression of those that follow.
      {"5.1",
       "FramesAfterTheServersReset",
       {{HeadersFrame(CallHead(Header("X-TEST", "ok"))),
         ResetWith(kProtocolError)},
        {Message() + HeadersFrame("\x40" + ok.substr(1), kWhole) + Ping(),
         Pong()},
        {Call(3, "\xbe"), Served(3)}}},
      {"5.1.1",
       "EvenNumber",
       {{HeadersFrame(head, kWhole, 2), ConnectionError({kProtocolError})}}},
      {"5.1.1",
       "NumberBelowThePrevious",
       {{HeadersFrame(head, kWhole, 5) + HeadersFrame(head, kWhole, 3),
         ConnectionError({kProtocolError})}}},
      {"5.3.1",
       "HeadersThatDependOnThemselves",
       {{HeadersFrame(PriorityOf(1) + head, kWhole | kWithPriority),
         StreamError({kProtocolError})}}},
      // RFC 7540 has a stream error here. RFC 9113 has dropped it with the
      // priorities, and a server that says, by SETTINGS_NO_RFC7540_PRIORITIES,
      // that it takes none, ignores the frame (RFC 9218, 2.1).
      {"5.3.1",
       "PriorityThatDependsOnItself",
       {{Priority(1, PriorityOf(1)) + Ping(), Pong()}}},
      // PING belongs to no stream.
      {"5.4.1", "ClosesAfterAConnectionError", {{Ping(0, 3), End()}}},
      {"5.4.1",
       "GoAwayForAConnectionError",
       {{Ping(0, 3), GoAwayWith(kProtocolError)}}},
      {"5.5", "UnknownFrame", {{UnknownFrame() + Ping(), Pong()}}},
      {"5.5",
       "UnknownFrameWithinAHead",
       {{HeadersFrame(head, kEndStream) + UnknownFrame(),
         ConnectionError({kProtocolError})}}},
  };
}

std::vector<Case> MessageCases() {
  const std::string part = DataFrame(Bytes("\0\0"));  // of a message
  const std::string ok = Header("x-test", "ok");
  return {
      {"7",
       "GoAwayWithAnUnknownError",
       {{GoAwayFrame(0xff) + Ping(), PongOrEnd()}}},
      {"7",
       "ResetWithAnUnknownError",
       {{Open() + Reset(0xff) + Ping(), Pong()}}},

      {"8.1",
       "SecondHeadersWithoutEndOfStream",
       {{Open() + part + HeadersFrame(ok), StreamError({kProtocolError})}}},
      Malformed("8.1.2", "NameInUpperCase", CallHead(Header("X-TEST", "ok"))),
      Malformed("8.1.2.1", "UnknownPseudoHeader",
                PseudoHeaders() + Header(":test", "ok") + GrpcHeaders()),
      Malformed("8.1.2.1", "PseudoHeaderOfAResponse",
                PseudoHeaders() + Header(":status", "200") + GrpcHeaders()),
      {"8.1.2.1",
       "PseudoHeaderInTrailers",
       {{Open() + part + HeadersFrame(Header(":method", "POST"), kWhole),
         StreamError({kProtocolError})}}},
      Malformed("8.1.2.1", "PseudoHeaderBehindOthers",
                ok + PseudoHeaders() + GrpcHeaders()),
      Malformed("8.1.2.2", "ConnectionHeader",
                CallHead(Header("connection", "keep-alive"))),
      Malformed("8.1.2.2", "TeOtherThanTrailers",
                PseudoHeaders() + Header("te", "trailers, deflate") +
                    Header("content-type", "application/grpc")),
      Malformed("8.1.2.3", "EmptyPath",
                PseudoHeaders("POST", "") + GrpcHeaders()),
      Malformed("8.1.2.3", "NoMethod",
                Header(":scheme", "http") + Header(":path", "/") +
                    Header(":authority", "x") + GrpcHeaders()),
      Malformed("8.1.2.3", "NoScheme",
                Header(":method", "POST") + Header(":path", "/") +
                    Header(":authority", "x") + GrpcHeaders()),
      Malformed("8.1.2.3", "NoPath",
                Header(":method", "POST") + Header(":scheme", "http") +
                    Header(":authority", "x") + GrpcHeaders()),
      Malformed("8.1.2.3", "TwoMethods",
                PseudoHeaders() + Header(":method", "POST") + GrpcHeaders()),
      Malformed("8.1.2.3", "TwoSchemes",
                PseudoHeaders() + Header(":scheme", "http") + GrpcHeaders()),
      Malformed("8.1.2.3", "TwoPaths",
                PseudoHeaders() + Header(":path", "/") + GrpcHeaders()),
      Malformed("8.1.2.6", "ContentLengthOtherThanTheData",
                CallHead(Header("content-length", "1"))),
      {"8.1.2.6",
       "ContentLengthOtherThanTheSumOfData",
       {{Open(1, Header("content-length", "1")) + part +
             DataFrame(Bytes("\0\0\0"), kEndStream),
         StreamError({kProtocolError})}}},

      {"8.2",
       "PushPromise",
       {{Frame(kPushPromise, kEndHeaders, 1, BigEndian(3, 4) + CallHead()),
         ConnectionError({kProtocolError})}}},
  };
}

}  // namespace recurve::http2
