#include "server/vllm/open_requests.h"

#include <chrono>
#include <vector>

#include "absl/status/status.h"

namespace recurve {

void OpenRequests::Add(uint32_t flow, const std::string& id,
                       std::shared_ptr<RpcStream> stream) {
  const std::chrono::duration<double> now =
      std::chrono::system_clock::now().time_since_epoch();
  MutexLock lock(&mu_);
  last_seconds_ = now.count();
  if (!id.empty()) streams_.emplace(std::pair(flow, id), std::move(stream));
}

void OpenRequests::Remove(uint32_t flow, const std::string& id,
                          const RpcStream* stream) {
  MutexLock lock(&mu_);
  const auto [begin, end] = streams_.equal_range(std::pair(flow, id));
  for (auto it = begin; it != end; ++it) {
    if (it->second.get() != stream) continue;
    streams_.erase(it);
    return;
  }
}

void OpenRequests::Abort(uint32_t flow, const std::string& id) {
  std::vector<std::shared_ptr<RpcStream>> named;
  {
    MutexLock lock(&mu_);
    const auto [begin, end] = streams_.equal_range(std::pair(flow, id));
    for (auto it = begin; it != end; ++it) named.push_back(it->second);
  }
  // The transport then tells the call, which has the engine cancel it.
  for (const auto& stream : named) {
    stream->Finish(absl::CancelledError("Abort named the request"), {});
  }
}

double OpenRequests::last_seconds() const {
  MutexLock lock(&mu_);
  return last_seconds_;
}

}  // namespace recurve
