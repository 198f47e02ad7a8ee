#include "kv_cache/sequence_lease.h"

#include <utility>

#include "kv_cache/cache_manager.h"

namespace recurve {

SequenceLease::SequenceLease(SequenceLease&& other) noexcept
    : manager_(std::exchange(other.manager_, nullptr)),
      owner_(std::exchange(other.owner_, 0)),
      slot_(std::exchange(other.slot_, OwnedId())),
      pages_(std::exchange(other.pages_, {})),
      page_generations_(std::exchange(other.page_generations_, {})) {}

SequenceLease& SequenceLease::operator=(SequenceLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  manager_ = std::exchange(other.manager_, nullptr);
  owner_ = std::exchange(other.owner_, 0);
  slot_ = std::exchange(other.slot_, OwnedId());
  pages_ = std::exchange(other.pages_, {});
  page_generations_ = std::exchange(other.page_generations_, {});
  return *this;
}

void SequenceLease::Release() {
  if (empty()) return;
  manager_->TakeBack(*this);
  manager_ = nullptr;
  owner_ = 0;
  slot_ = OwnedId();
  pages_.clear();
  page_generations_.clear();
}

int64_t SequenceLease::tokens_applied() const {
  return empty() ? 0 : manager_->TokensApplied(*this);
}

}  // namespace recurve
