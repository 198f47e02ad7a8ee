// h2spec's groups "generic", of what a server must accept, and "hpack".

#include <string>
#include <vector>

#include "tests/e2e/http2_conformance.h"

namespace recurve::http2 {
namespace {

// A call with `field` at the end of its head.
Case Literal(const std::string& name, const std::string& field) {
  return {"5", name, {{Call(1, field), Served()}}};
}

// The same, where the field enters the table: a second call refers to it.
Case Indexed(const std::string& name, const std::string& field) {
  return {"5",
          name,
          {{Call(1, field), Served()},
           // Index 62 is the dynamic table's first.
           {Call(3, "\xbe"), Served(3)}}};
}

Case DecodingError(const std::string& section, const std::string& name,
                   const std::string& block) {
  return {section,
          name,
          {{HeadersFrame(block, kEndHeaders | kEndStream),
            ConnectionError({kCompressionError})}}};
}

// "user-agent" is index 58 of the static table, and a literal's name.
constexpr char kValue[] =
    "\x06"
    "h2spec";
constexpr char kHuffmanValue[] = "\x84\x9c\x48\xac\xa4";
constexpr char kName[] =
    "\x06"
    "x-test";
constexpr char kHuffmanName[] = "\x85\xf2\xb2\x4a\x84\xff";

}  // namespace

std::vector<Case> GenericCases() {
  const std::string head = CallHead();
  return {
      {"1",
       "SendsClientPreface",
       {{kMagic + Settings(Setting(kInitialWindowSize, 65535)),
         ServerSettings()}},
       /*after_preface=*/false},

      {"2", "PriorityOnIdleStream", {{Priority() + Ping(), Pong()}}},
      // The answer waits for window, so that the stream is half-closed.
      {"2",
       "WindowUpdateOnHalfClosedStream",
       {{Settings(Setting(kInitialWindowSize, 0)) + Call(), Head()},
        {WindowUpdate(1, 1), DataOf(1)}}},
      {"2",
       "PriorityOnHalfClosedStream",
       {{Settings(Setting(kInitialWindowSize, 0)) + Call(), Head()},
        {Priority() + WindowUpdate(1, 1), DataOf(1)}}},
      {"2",
       "ResetOnHalfClosedStream",
       {{Settings(Setting(kInitialWindowSize, 0)) + Call(), Head()},
        {Reset() + Ping(), Pong()}}},
      {"2",
       "PriorityOnClosedStream",
       {{Call(), Served()}, {Priority() + Ping(), Pong()}}},

      {"3.1", "Data", {{Open() + Message(), Served()}}},
      {"3.1",
       "SeveralData",
       {{Open() + DataFrame(Bytes("\0\0")) +
             DataFrame(Bytes("\0\0\0"), kEndStream),
         Served()}}},
      {"3.1",
       "PaddedData",
       {{Open() +
             DataFrame(Bytes("\x05") + EmptyMessage() + Bytes("\0\0\0\0\0"),
                       kEndStream | kPadded),
         Served()}}},

      {"3.2", "Headers", {{HeadersFrame(head) + Message(), Served()}}},
      {"3.2",
       "PaddedHeaders",
       {{HeadersFrame("\x08" + head + Bytes("\0\0\0\0\0\0\0\0"),
                      kEndHeaders | kPadded) +
             Message(),
         Served()}}},
      {"3.2",
       "HeadersWithPriority",
       {{HeadersFrame(PriorityOf(0) + head, kEndHeaders | kWithPriority) +
             Message(),
         Served()}}},

      {"3.3",
       "PriorityOfWeight1",
       {{Priority(1, PriorityOf(0, 0)) + Call(), Served()}}},
      {"3.3",
       "PriorityOfWeight256",
       {{Priority(1, PriorityOf(0, 255)) + Call(), Served()}}},
      {"3.3",
       "PriorityThatDependsOnAStream",
       {{Priority(3, PriorityOf(1, 0)) + Call(), Served()}}},
      {"3.3",
       "PriorityThatIsExclusive",
       {{Priority(1, PriorityOf(0, 0, true)) + Call(), Served()}}},
      {"3.3",
       "PriorityOfAnIdleStreamThenHeadersOfALowerOne",
       {{Priority(3) + Call(), Served()}}},

      {"3.4", "Reset", {{Open() + Reset() + Ping(), Pong()}}},
      {"3.5",
       "Settings",
       {{Settings(Setting(kHeaderTableSize, 4096) + Setting(kEnablePush, 1) +
                  Setting(kMaxConcurrentStreams, 100) +
                  Setting(kInitialWindowSize, 65535) +
                  Setting(kMaxFrameSize, 16384) +
                  Setting(kMaxHeaderListSize, 100)),
         SettingsAck()}}},
      {"3.7", "Ping", {{Ping(), Pong()}}},
      {"3.8", "GoAway", {{GoAwayFrame(kNoError) + Ping(), PongOrEnd()}}},
      {"3.9",
       "WindowUpdateOfTheConnection",
       {{WindowUpdate(0, 1) + Ping(), Pong()}}},
      {"3.9",
       "WindowUpdateOfAStream",
       {{Open() + WindowUpdate(1, 1) + Message(), Served()}}},
      {"3.10",
       "Continuation",
       {{HeadersFrame(head.substr(0, 5), 0) + Continuation(head.substr(5)) +
             Message(),
         Served()}}},
      {"3.10",
       "SeveralContinuations",
       {{HeadersFrame(head.substr(0, 5), 0) +
             Continuation(head.substr(5, 5), 0) +
             Continuation(head.substr(10)) + Message(),
         Served()}}},

      // gRPC is POST alone.
      {"4",
       "GetRequest",
       {{HeadersFrame(PseudoHeaders("GET", "/"), kEndHeaders | kEndStream),
         Answered("405")}}},
      {"4",
       "HeadRequest",
       {{HeadersFrame(PseudoHeaders("HEAD", "/"), kEndHeaders | kEndStream),
         Answered("405")}}},
      {"4", "PostRequest", {{Call(), Served()}}},
      {"4",
       "PostRequestWithTrailers",
       {{Open(1, Header("trailer", "x-test")) + DataFrame(EmptyMessage()) +
             HeadersFrame(Header("x-test", "ok"), kEndHeaders | kEndStream),
         Served()}}},

      Literal("IndexedField", "\xba"),
      Indexed("IncrementalIndexingIndexedName", Bytes("\x7a") + kValue),
      Indexed("IncrementalIndexingIndexedNameHuffman",
              Bytes("\x7a") + kHuffmanValue),
      Indexed("IncrementalIndexingNewName", Bytes("\x40") + kName + kValue),
      Indexed("IncrementalIndexingNewNameHuffman",
              Bytes("\x40") + kHuffmanName + kHuffmanValue),
      Literal("WithoutIndexingIndexedName", Bytes("\x0f\x2b") + kValue),
      Literal("WithoutIndexingIndexedNameHuffman",
              Bytes("\x0f\x2b") + kHuffmanValue),
      Literal("WithoutIndexingNewName", Bytes("\0") + kName + kValue),
      Literal("WithoutIndexingNewNameHuffman",
              Bytes("\0") + kHuffmanName + kHuffmanValue),
      Literal("NeverIndexedIndexedName", Bytes("\x1f\x2b") + kValue),
      Literal("NeverIndexedIndexedNameHuffman",
              Bytes("\x1f\x2b") + kHuffmanValue),
      Literal("NeverIndexedNewName", Bytes("\x10") + kName + kValue),
      Literal("NeverIndexedNewNameHuffman",
              Bytes("\x10") + kHuffmanName + kHuffmanValue),
      // To 128.
      {"5",
       "TableSizeUpdate",
       {{HeadersFrame("\x3f\x61" + head) + Message(), Served()}}},
      // To 128 and back to 4096.
      {"5",
       "SeveralTableSizeUpdates",
       {{HeadersFrame("\x3f\x61\x3f\xe1\x1f" + head) + Message(), Served()}}},
  };
}

std::vector<Case> HpackCases() {
  const std::string head = CallHead();
  return {
      DecodingError("2.3.3", "IndexedFieldWithAnIndexThatIsTooHigh",
                    head + "\xc6"),
      DecodingError("2.3.3", "LiteralFieldWithAnIndexThatIsTooHigh",
                    head + Bytes("\x7f\x07\x00")),
      DecodingError("4.2", "TableSizeUpdateAtTheEnd", head + "\x21"),
      // "x-test: test", with a byte of padding more.
      DecodingError("5.2", "HuffmanPaddingOfMoreThan7Bits",
                    head + Bytes("\0") + kHuffmanName + "\x84\x49\x50\x9f\xff"),
      DecodingError("5.2", "HuffmanPaddingOfZeros",
                    head + Bytes("\0") + kHuffmanName + "\x83\x49\x50\x90"),
      // "tes", the symbol, "t".
      DecodingError("5.2", "HuffmanEndOfStringSymbol",
                    head + Bytes("\0") + kHuffmanName +
                        "\x87\x49\x51\xff\xff\xff\xfa\x7f"),
      DecodingError("6.1", "IndexedFieldWithIndex0", head + "\x80"),
      // 4097, while the server's SETTINGS leave the initial 4096.
      DecodingError("6.3", "TableSizeUpdateBeyondTheSetting",
                    "\x3f\xe2\x1f" + head),
  };
}

}  // namespace recurve::http2
