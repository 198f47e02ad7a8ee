#ifndef RECURVE_SERVER_REQUESTS_REFUSAL_H_
#define RECURVE_SERVER_REQUESTS_REFUSAL_H_

#include "absl/status/status.h"
#include "engine/serving/engine.h"
#include "server/telemetry/metrics.h"

namespace recurve {

// Why a request that ends with `status`, before the engine accepted it, was
// refused. `by_quota`: RESOURCE_EXHAUSTED came from the tenant's quotas.
inline RefusalReason RefusalReasonOf(const absl::Status& status, bool by_quota,
                                     const Engine& engine) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return by_quota            ? RefusalReason::kQuota
             : IsTooLate(status) ? RefusalReason::kDeadline
                                 : RefusalReason::kQueueFull;
    case absl::StatusCode::kPermissionDenied:
      return RefusalReason::kQuota;
    case absl::StatusCode::kUnavailable:
      return engine.health().ok() ? RefusalReason::kDraining
                                  : RefusalReason::kDeviceFailed;
    case absl::StatusCode::kUnauthenticated:
      return RefusalReason::kUnauthenticated;
    case absl::StatusCode::kInvalidArgument:
      return RefusalReason::kInvalid;
    default:
      return RefusalReason::kInternal;
  }
}

}  // namespace recurve

#endif  // RECURVE_SERVER_REQUESTS_REFUSAL_H_
