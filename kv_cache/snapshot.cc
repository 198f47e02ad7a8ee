#include "kv_cache/snapshot.h"

#include "kv_cache/cache_manager.h"

namespace recurve {

Snapshot::~Snapshot() { manager_->TakeBack(*this); }

}  // namespace recurve
