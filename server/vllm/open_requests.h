#ifndef RECURVE_SERVER_VLLM_OPEN_REQUESTS_H_
#define RECURVE_SERVER_VLLM_OPEN_REQUESTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "server/grpc/rpc.h"

namespace recurve {

// The open Generate calls of VllmEngine by the ids that their clients gave
// them, so that Abort finds them. A tenant finds its own alone; ids need not
// differ.
//
// Thread-safe.
class OpenRequests {
 public:
  // `stream` is found until Remove. An empty id is not.
  void Add(uint32_t flow, const std::string& id,
           std::shared_ptr<RpcStream> stream) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(uint32_t flow, const std::string& id, const RpcStream* stream)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all of the flow's calls of this id with CANCELLED.
  void Abort(uint32_t flow, const std::string& id) ABSL_LOCKS_EXCLUDED(mu_);

  // When the last call was added, in seconds since 1970; 0: none was.
  double last_seconds() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::multimap<std::pair<uint32_t, std::string>, std::shared_ptr<RpcStream>>
      streams_ ABSL_GUARDED_BY(mu_);
  double last_seconds_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_VLLM_OPEN_REQUESTS_H_
