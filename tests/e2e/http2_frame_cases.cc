// h2spec's group "http2", section 6: each type of frame.

#include <string>
#include <vector>

#include "tests/e2e/http2_conformance.h"

namespace recurve::http2 {
namespace {

constexpr int kWhole = kEndHeaders | kEndStream;
constexpr uint32_t kMaxWindow = (1U << 31) - 1;

// A SETTINGS frame whose one value is out of bounds.
Case BadSetting(const std::string& section, const std::string& name, int id,
                uint32_t value, uint32_t error) {
  return {section,
          name,
          {{Settings(Setting(id, value)), ConnectionError({error})}}};
}

}  // namespace

std::vector<Case> FrameCases() {
  const std::string head = CallHead();
  const std::string dummy = Header("x-dummy", std::string(100, 'x'));
  return {
      {"6.1",
       "DataOnStream0",
       {{Message(0), ConnectionError({kProtocolError})}}},
      {"6.1",
       "DataOnAStreamThatIsNotOpen",
       {{Settings(Setting(kInitialWindowSize, 0)) + Call(), Head()},
        {Message(), StreamError({kStreamClosed})}}},
      // 6 bytes of padding in a payload of 5.
      {"6.1",
       "DataWithTooMuchPadding",
       {{Open(1, Header("content-length", "4")) +
             DataFrame("\x06Test", kEndStream | kPadded),
         ConnectionError({kProtocolError})}}},

      {"6.2",
       "PriorityWithinAHead",
       {{HeadersFrame(head, 0) + Priority() + Continuation(dummy),
         ConnectionError({kProtocolError})}}},
      {"6.2",
       "HeadersOfAnotherStreamWithinAHead",
       {{HeadersFrame(head, 0) + HeadersFrame(head, kWhole, 3) +
             Continuation(dummy),
         ConnectionError({kProtocolError})}}},
      {"6.2",
       "HeadersOnStream0",
       {{HeadersFrame(head, kWhole, 0), ConnectionError({kProtocolError})}}},
      {"6.2",
       "HeadersWithTooMuchPadding",
       {{HeadersFrame(static_cast<char>(head.size() + 1) + head,
                      kWhole | kPadded),
         StreamError({kProtocolError})}}},

      {"6.3",
       "PriorityOnStream0",
       {{Priority(0), ConnectionError({kProtocolError})}}},
      {"6.3",
       "PriorityOfAnotherSize",
       {{Open() + Priority(1, Bytes("\x80\0\0\x01")),
         StreamError({kFrameSizeError})}}},

      {"6.4",
       "ResetOnStream0",
       {{Reset(kCancel, 0), ConnectionError({kProtocolError})}}},
      {"6.4",
       "ResetOnIdleStream",
       {{Reset(), ConnectionError({kProtocolError})}}},
      {"6.4",
       "ResetOfAnotherSize",
       {{Open() + Frame(kReset, 0, 1, Bytes("\0\0\0")),
         ConnectionError({kFrameSizeError})}}},

      {"6.5",
       "AckWithPayload",
       {{Frame(kSettings, kAck, 0, Bytes("\0")),
         ConnectionError({kFrameSizeError})}}},
      {"6.5",
       "SettingsOnAStream",
       {{Frame(kSettings, 0, 1, Setting(kMaxConcurrentStreams, 100)),
         ConnectionError({kProtocolError})}}},
      {"6.5",
       "SettingsThatAreNotWhole",
       {{Settings(Bytes("\0\x03\0")), ConnectionError({kFrameSizeError})}}},
      BadSetting("6.5.2", "EnablePushOf2", kEnablePush, 2, kProtocolError),
      BadSetting("6.5.2", "InitialWindowSizeAboveTheMaximum",
                 kInitialWindowSize, 1U << 31, kFlowControlError),
      BadSetting("6.5.2", "MaxFrameSizeBelowTheInitialValue", kMaxFrameSize,
                 16383, kProtocolError),
      BadSetting("6.5.2", "MaxFrameSizeAboveTheMaximum", kMaxFrameSize,
                 1U << 24, kProtocolError),
      {"6.5.2",
       "UnknownSetting",
       {{Settings(Setting(0xff, 1)) + Ping(), Pong()}}},
      {"6.5.3",
       "TheLastOfSeveralValuesCounts",
       {{Settings(Setting(kInitialWindowSize, 100) +
                  Setting(kInitialWindowSize, 1)),
         SettingsAck()},
        {Call(), DataOf(1)}}},
      {"6.5.3",
       "SettingsAreAcknowledged",
       {{Settings(Setting(kEnablePush, 0)), SettingsAck()}}},

      {"6.7", "PingIsAnswered", {{Ping(), Pong()}}},
      {"6.7",
       "PingWithAckIsNotAnswered",
       {{Ping(kAck, 0, "another.") + Ping(), Pong()}}},
      {"6.7",
       "PingOnAStream",
       {{Ping(0, 1), ConnectionError({kProtocolError})}}},
      {"6.7",
       "PingOfAnotherSize",
       {{Ping(0, 0, "short."), ConnectionError({kFrameSizeError})}}},

      {"6.8",
       "GoAwayOnAStream",
       {{GoAwayFrame(kNoError, 1), ConnectionError({kProtocolError})}}},

      {"6.9",
       "WindowUpdateOfNothing",
       {{WindowUpdate(0, 0), ConnectionError({kProtocolError})}}},
      {"6.9",
       "WindowUpdateOfNothingOnAStream",
       {{Open() + WindowUpdate(1, 0), StreamError({kProtocolError})}}},
      {"6.9",
       "WindowUpdateOfAnotherSize",
       {{Frame(kWindowUpdate, 0, 0, Bytes("\0\0\x01")),
         ConnectionError({kFrameSizeError})}}},
      {"6.9.1",
       "SendsNoMoreThanTheWindow",
       {{Settings(Setting(kInitialWindowSize, 1)), SettingsAck()},
        {Call(), DataOf(1)}}},
      {"6.9.1",
       "WindowOfTheConnectionAboveTheMaximum",
       {{WindowUpdate(0, kMaxWindow) + WindowUpdate(0, kMaxWindow),
         GoAwayWith(kFlowControlError)}}},
      {"6.9.1",
       "WindowOfAStreamAboveTheMaximum",
       {{Open() + WindowUpdate(1, kMaxWindow) + WindowUpdate(1, kMaxWindow),
         ResetWith(kFlowControlError)}}},
      {"6.9.2",
       "InitialWindowSizeOfOpenStreams",
       {{Settings(Setting(kInitialWindowSize, 0)), SettingsAck()},
        {Call(), Head()},
        {Settings(Setting(kInitialWindowSize, 1)), DataOf(1)}}},
      // 3 bytes are sent; the setting makes it -1, the update 1.
      {"6.9.2",
       "WindowBelowZero",
       {{Settings(Setting(kInitialWindowSize, 3)), SettingsAck()},
        {Call(), DataOf(3)},
        {Settings(Setting(kInitialWindowSize, 2)), SettingsAck()},
        {WindowUpdate(1, 2), DataOf(1)}}},
      BadSetting("6.9.2", "InitialWindowSizeAboveTheMaximum",
                 kInitialWindowSize, 1U << 31, kFlowControlError),

      {"6.10",
       "SeveralContinuationsBehindHeaders",
       {{HeadersFrame(head, 0) + Continuation(dummy, 0) + Continuation(dummy) +
             Message(),
         Served()}}},
      {"6.10",
       "DataBehindAContinuationWithoutEnd",
       {{HeadersFrame(head, 0) + Continuation(dummy, 0) + Message(),
         ConnectionError({kProtocolError})}}},
      {"6.10",
       "ContinuationOnStream0",
       {{HeadersFrame(head, kEndStream) + Continuation(dummy, kEndHeaders, 0),
         ConnectionError({kProtocolError})}}},
      {"6.10",
       "ContinuationBehindHeadersWithEnd",
       {{Open() + Continuation(dummy), ConnectionError({kProtocolError})}}},
      {"6.10",
       "ContinuationBehindAContinuationWithEnd",
       {{HeadersFrame(head, 0) + Continuation(dummy) + Continuation(dummy),
         ConnectionError({kProtocolError})}}},
      {"6.10",
       "ContinuationBehindData",
       {{HeadersFrame(head, 0) + Message() + Continuation(dummy, 0) +
             Continuation(dummy),
         ConnectionError({kProtocolError})}}},
  };
}

}  // namespace recurve::http2
