#include "server/transport/stranger_bytes.h"

#include <iterator>
#include <utility>
#include <vector>

namespace recurve {

std::function<void()> StrangerBytes::TakeOldest(IdleList& list) {
  Idle& oldest = list.front();
  Share& share = *oldest.share;
  share.place_.reset();
  share.ending_ = true;
  share.ending_bytes_ = oldest.bytes;
  ending_bytes_ += oldest.bytes;
  idle_bytes_ -= oldest.bytes;
  std::function<void()> end = std::move(oldest.end);
  list.pop_front();
  return end;
}

bool StrangerBytes::EndOldest(Port port) {
  std::function<void()> end;
  {
    MutexLock lock(&mu_);
    IdleList& list = ListOf(port);
    if (list.empty()) return false;
    end = TakeOldest(list);
  }
  end();
  return true;
}

bool StrangerBytes::MakeRoom() {
  if (total_.load() <= max_total_) return true;
  std::vector<std::function<void()>> ends;
  {
    MutexLock lock(&mu_);
    if (total_.load() - ending_bytes_ - idle_bytes_ > max_total_) return false;
    while (total_.load() - ending_bytes_ > max_total_) {
      IdleList* oldest = nullptr;
      for (IdleList& list : idle_) {
        if (list.empty()) continue;
        if (oldest == nullptr || list.front().order < oldest->front().order) {
          oldest = &list;
        }
      }
      if (oldest == nullptr) break;  // others grow meanwhile
      ends.push_back(TakeOldest(*oldest));
    }
  }
  for (const auto& end : ends) end();
  return true;
}

bool StrangerBytes::Share::Set(int64_t bytes) {
  if (all_ == nullptr) return true;
  all_->total_.fetch_add(bytes - bytes_);
  const bool grows = bytes > bytes_;
  bytes_ = bytes;
  return bytes <= all_->max_a_connection_ && (!grows || all_->MakeRoom());
}

void StrangerBytes::Share::SetIdle(std::function<void()> end) {
  if (all_ == nullptr) return;
  MutexLock lock(&all_->mu_);
  if (place_ || ending_) return;
  IdleList& list = all_->ListOf(port_);
  list.push_back({this, bytes_, all_->next_order_++, std::move(end)});
  place_ = std::prev(list.end());
  all_->idle_bytes_ += bytes_;
}

void StrangerBytes::Share::Unlist() {
  if (!place_) return;
  all_->idle_bytes_ -= (*place_)->bytes;
  all_->ListOf(port_).erase(*place_);
  place_.reset();
}

void StrangerBytes::Share::SetBusy() {
  if (all_ == nullptr) return;
  MutexLock lock(&all_->mu_);
  Unlist();
}

void StrangerBytes::Share::Release() {
  if (all_ == nullptr) return;
  {
    MutexLock lock(&all_->mu_);
    Unlist();
    all_->total_.fetch_sub(std::exchange(bytes_, 0));
    all_->ending_bytes_ -= std::exchange(ending_bytes_, 0);
  }
  all_ = nullptr;
}

}  // namespace recurve
