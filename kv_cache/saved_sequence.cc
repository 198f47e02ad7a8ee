#include "kv_cache/saved_sequence.h"

#include "kv_cache/cache_manager.h"

namespace recurve {

void SavedSequence::Release() {
  if (empty()) return;
  manager_->TakeBack(*this);
  manager_ = nullptr;
  owner_ = 0;
  tokens_ = 0;
  blocks_.clear();
  generations_.clear();
}

}  // namespace recurve
