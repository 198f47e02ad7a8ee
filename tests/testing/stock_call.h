#ifndef RECURVE_TESTS_TESTING_STOCK_CALL_H_
#define RECURVE_TESTS_TESTING_STOCK_CALL_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "tests/testing/direct_channel.h"

namespace recurve {

// A call by gRPC's own client, step by step.
class StockCall {
 public:
  StockCall(const std::shared_ptr<grpc::Channel>& channel,
            const std::string& method,
            std::optional<std::chrono::milliseconds> timeout = std::nullopt)
      : stub_(channel) {
    if (timeout) {
      context_.set_deadline(std::chrono::system_clock::now() + *timeout);
    }
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Next();
  }
  ~StockCall() {
    queue_.Shutdown();
    while (Next()) {
    }
  }

  bool Write(const std::string& message) {
    const grpc::Slice slice(message);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    return Next();
  }
  bool WritesDone() {
    call_->WritesDone(nullptr);
    return Next();
  }
  // Nothing at the end.
  std::optional<std::string> Read() {
    grpc::ByteBuffer bytes;
    call_->Read(&bytes, nullptr);
    grpc::Slice slice;
    if (!Next() || !bytes.DumpToSingleSlice(&slice).ok()) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(slice.begin()),
                       slice.size());
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Next();
    return status;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  bool Next() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

// A channel with a separate connection.
inline std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
  grpc::ChannelArguments arguments = DirectArguments();
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return DirectChannel(address, arguments);
}

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_STOCK_CALL_H_
