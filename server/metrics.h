#ifndef RECURVE_SERVER_METRICS_H_
#define RECURVE_SERVER_METRICS_H_

#include <memory>

#include "engine/observer.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace recurve {

// Counts what the engine does, as Prometheus metrics named recurve_…; the list
// is in docs/metrics.md. Nothing in them comes from a request's content.
//
// Thread safety: called on the step thread; scraped from any.
class Metrics : public EngineObserver {
 public:
  Metrics();
  ~Metrics() override;

  std::shared_ptr<prometheus::Registry> registry() const;

  // Sizes that stay as they are.
  void SetCapacity(int64_t state_bytes, int64_t slots, int64_t pages);

  void OnStepDone(int64_t sequences, int64_t tokens, double seconds) override;
  void OnLoad(const EngineLoad& load) override;
  void OnQueued(double queue_seconds) override;
  void OnFirstToken(double seconds_since_submit) override;
  void OnNextToken(double seconds_since_last_token) override;
  void OnCommandDone(const CommandResult& result) override;
  void OnFailed(const absl::Status& status) override;

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_METRICS_H_
