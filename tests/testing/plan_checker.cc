#include "tests/testing/plan_checker.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

absl::Status Broken(absl::string_view rule, uint64_t id) {
  return absl::FailedPreconditionError(
      absl::StrCat(rule, " (sequence ", id, ")"));
}

// The limits of scheduler.h, written down once more.
int64_t Rest(const SequenceView& s) { return s.num_tokens - s.num_computed; }
bool Decodes(const SequenceView& s) { return Rest(s) == 1; }

class Checker {
 public:
  Checker(const SchedulerLimits& limits, int64_t free_pages, int64_t free_slots,
          absl::Span<const SequenceView> resident,
          absl::Span<const SequenceView> waiting, const StepPlan& plan)
      : limits_(limits),
        pages_left_(free_pages),
        slots_left_(free_slots),
        tokens_left_(limits.max_batched_tokens),
        prompt_tokens_left_(limits.max_prompt_tokens),
        plan_(plan),
        waiting_(waiting.begin(), waiting.end()) {
    for (const SequenceView& s : resident) resident_[s.id] = s;
    before_ = resident_;
    pages_at_first_ = free_pages;
    std::sort(waiting_.begin(), waiting_.end(), RanksAbove);
  }

  absl::Status Check() {
    RECURVE_RETURN_IF_ERROR(ApplyMemory());
    RECURVE_RETURN_IF_ERROR(ApplyEntries());
    RECURVE_RETURN_IF_ERROR(CheckVictims());
    RECURVE_RETURN_IF_ERROR(CheckAdmission());
    RECURVE_RETURN_IF_ERROR(CheckHalf());
    return CheckProgress();
  }

 private:
  int64_t PagesFor(int64_t tokens) const {
    return limits_.page_tokens == 0
               ? 0
               : (tokens + limits_.page_tokens - 1) / limits_.page_tokens;
  }
  // Pages that `tokens` tokens need beyond those held.
  int64_t Missing(const SequenceView& s, int64_t tokens) const {
    return std::max<int64_t>(0, PagesFor(tokens) - s.pages);
  }
  bool Preempted(uint64_t id) const { return preempted_.count(id) > 0; }
  bool Runs(uint64_t id) const { return entries_.count(id) > 0; }
  static bool IsPaced(const SequenceView& s) {
    return s.paced && s.num_tokens - s.num_computed > 1;
  }

  using Views = std::map<uint64_t, SequenceView>;

  // Pages that are free when these residents have lost their memory, and were
  // not before.
  static int64_t Freed(const std::set<uint64_t>& ids, const Views& residents) {
    std::map<int32_t, int64_t> holders;
    for (const auto& [id, s] : residents) {
      for (int32_t page : s.page_ids) ++holders[page];
    }
    int64_t freed = 0;
    for (uint64_t id : ids) {
      const SequenceView& s = residents.at(id);
      freed += s.pages - static_cast<int64_t>(s.page_ids.size());
      for (int32_t page : s.page_ids) freed += --holders[page] == 0;
    }
    return freed;
  }

  absl::Status ApplyMemory() {
    for (uint64_t id : plan_.preempt) {
      if (resident_.count(id) == 0 || !preempted_.insert(id).second)
        return Broken("what is preempted holds memory, once", id);
      ++slots_left_;
    }
    pages_left_ += Freed(preempted_, before_);
    for (uint64_t id : plan_.admit) {
      const auto found =
          std::find_if(waiting_.begin(), waiting_.end(),
                       [id](const SequenceView& s) { return s.id == id; });
      if (found == waiting_.end() || !admitted_.emplace(id, *found).second)
        return Broken("what is admitted was waiting, once", id);
      pages_left_ -= PagesFor(found->num_tokens);
      --slots_left_;
      if (pages_left_ < 0 || slots_left_ < 0)
        return Broken("those admitted fit", id);
    }
    return absl::OkStatus();
  }

  absl::Status ApplyEntries() {
    for (const StepPlan::Entry& entry : plan_.entries) {
      const bool admitted = admitted_.count(entry.id) > 0;
      if (!entries_.insert(entry.id).second ||
          (!admitted && resident_.count(entry.id) == 0) ||
          Preempted(entry.id)) {
        return Broken("what runs holds memory, once", entry.id);
      }
      const SequenceView& s =
          admitted ? admitted_[entry.id] : resident_[entry.id];
      if (!s.has_work) return Broken("what runs has work", entry.id);
      if (entry.num_tokens < 1 || entry.num_tokens > limits_.max_chunk_tokens ||
          entry.num_tokens > s.num_tokens - s.num_computed) {
        return Broken("a chunk has 1 to chunk or remaining tokens", entry.id);
      }
      const int64_t end = s.num_computed + entry.num_tokens;
      if (end != s.num_tokens && end != s.whole_tokens &&
          end % limits_.chunk_multiple != 0)
        return Broken("a chunk ends at a multiple or the last token", entry.id);
      if (s.num_computed < s.whole_tokens && end < s.whole_tokens)
        return Broken("what is whole is computed in one step", entry.id);
      tokens_left_ -= entry.num_tokens;
      if (IsPaced(s)) prompt_tokens_left_ -= entry.num_tokens;
      only_paced_ &= IsPaced(s);
      if (!admitted) {
        const int64_t pages = Missing(s, s.num_computed + entry.num_tokens);
        pages_left_ -= pages;
        granted_[s.id] = pages;
        resident_[s.id].pages += pages;
      }
      if (tokens_left_ < 0 || pages_left_ < 0)
        return Broken("tokens and pages suffice", entry.id);
    }
    for (const auto& [id, s] : admitted_) {
      if (!Runs(id) && !s.from_host) return Broken("what is admitted runs", id);
    }
    // No sequence waits for a copy while there is other work.
    for (uint64_t id : entries_) {
      const auto found = admitted_.find(id);
      const bool waits = found != admitted_.end() ? found->second.from_host
                                                  : resident_.at(id).from_host;
      if (waits && entries_.size() > 1)
        return Broken("a step waits for a copy only if nothing else runs", id);
    }
    return absl::OkStatus();
  }

  static bool YieldsToWaiting(const SequenceView& victim,
                              const SequenceView& s) {
    return !victim.has_work || victim.priority < s.priority ||
           (victim.priority == s.priority && victim.flow != s.flow &&
            victim.turn > s.turn);
  }

  // Tokens that decoding leaves of the step.
  int64_t PromptTokens() const {
    int64_t tokens = limits_.max_batched_tokens;
    for (const auto& [id, s] : before_) {
      tokens -= s.has_work && !s.from_host && Decodes(s);
    }
    return tokens;
  }
  int64_t MostOf(const SequenceView& s) const {
    return std::min(limits_.max_chunk_tokens, s.max_step_tokens);
  }
  bool Fits(const SequenceView& s) const {
    const int64_t half = std::min(PromptTokens() / 2, MostOf(s));
    return s.whole_tokens <= half &&
           std::max(Rest(s), s.prompt_tokens) <= 2 * half;
  }

  absl::Status CheckVictims() const {
    for (uint64_t id : preempted_) {
      const SequenceView& victim = resident_.at(id);
      if (victim.ending) return Broken("what is about to end is no victim", id);
      bool justified = false;
      for (const auto& [gainer, pages] : granted_) {
        const bool yields =
            !victim.has_work || RanksAbove(resident_.at(gainer), victim);
        justified |= pages > 0 && yields;
      }
      for (const auto& [gainer, s] : admitted_)
        justified |= YieldsToWaiting(victim, s);
      // Or to one that had to yield itself, afterwards.
      for (uint64_t other : preempted_)
        justified |= RanksAbove(resident_.at(other), victim);
      if (!justified) return Broken("a victim yields without a gain", id);
    }
    return absl::OkStatus();
  }

  // Whether one with work that ranks above `s` was preempted in this step.
  bool BehindAVictim(const SequenceView& s) const {
    return std::any_of(preempted_.begin(), preempted_.end(), [&](uint64_t id) {
      const SequenceView& victim = resident_.at(id);
      return victim.has_work && RanksAbove(victim, s);
    });
  }

  // The fewest that `s` may compute in a step.
  int64_t LeastTokens(const SequenceView& s) const {
    return s.num_computed < s.whole_tokens
               ? std::max(std::min(s.num_tokens, limits_.chunk_multiple),
                          s.whole_tokens)
               : std::min(s.num_tokens - s.num_computed,
                          limits_.chunk_multiple -
                              s.num_computed % limits_.chunk_multiple);
  }

  // Whether `s`, the first that waits, is left waiting though it could have
  // what paced residents of lower priority have of the bound.
  bool IsPassedOver(const SequenceView& s) const {
    if (admitted_.count(s.id) > 0 || s.from_host || BehindAVictim(s) ||
        only_paced_ ||
        limits_.max_prompt_tokens == std::numeric_limits<int64_t>::max())
      return false;
    int64_t tokens = 0;
    for (const StepPlan::Entry& entry : plan_.entries) {
      const auto found = resident_.find(entry.id);
      if (found != resident_.end() && IsPaced(found->second) &&
          found->second.priority < s.priority) {
        tokens += entry.num_tokens;
      }
    }
    return tokens > 0 && tokens >= LeastTokens(s) && CouldFit(s);
  }

  absl::Status CheckAdmission() const {
    bool stopped = false;   // but for those that fit a step
    bool all_stop = false;  // and for these
    bool lacked_memory = false;
    std::set<uint32_t> long_flows;  // with one that does not fit, and waits
    bool perhaps_stopped = false;
    if (!waiting_.empty() && IsPassedOver(waiting_.front())) {
      return Broken("no paced resident runs in a higher one's place",
                    waiting_.front().id);
    }
    for (const SequenceView& s : waiting_) {
      if (admitted_.count(s.id) > 0) {
        // The first of a flow's prompts that do not fit a step may have a
        // share.
        if (all_stop || (stopped && !Fits(s) &&
                         (lacked_memory || long_flows.count(s.flow) > 0)))
          return Broken("nothing that waits is overtaken", s.id);
        if (BehindAVictim(s))
          return Broken("nothing that is preempted is overtaken", s.id);
        continue;
      }
      if (stopped && !Fits(s)) continue;
      const int64_t least = LeastTokens(s);
      // Its share of the limit may have been zero, and then it lets others
      // pass; or it may have stopped them because it lacks memory.
      if (IsPaced(s) &&
          limits_.max_prompt_tokens < std::numeric_limits<int64_t>::max()) {
        perhaps_stopped = true;
        continue;
      }
      if (perhaps_stopped) continue;
      // What victims leave may have come when it had had its turn.
      if (!stopped && preempted_.empty() && tokens_left_ >= least &&
          CouldFit(s))
        return Broken("what fits is admitted", s.id);
      stopped = true;
      const bool lacks = preempted_.empty() && LackedPages(s);
      lacked_memory |= lacks;
      if (!Fits(s)) long_flows.insert(s.flow);
      all_stop |= lacks && s.passes >= kMaxPasses;
    }
    for (uint64_t id : plan_.passed) {
      const auto found =
          std::find_if(waiting_.begin(), waiting_.end(),
                       [id](const SequenceView& s) { return s.id == id; });
      if (found == waiting_.end() || admitted_.count(id) > 0)
        return Broken("what is passed waits", id);
      if (found->passes >= kMaxPasses)
        return Broken("what was passed often is not passed again", id);
    }
    return absl::OkStatus();
  }

  // The part of it that prompts that fit a step get, alongside long ones.
  absl::Status CheckHalf() const {
    // Room that victims leave may have come when one had had its turn.
    if (!preempted_.empty()) return absl::OkStatus();
    const int64_t tokens = PromptTokens();
    int64_t long_tokens = 0;
    int64_t least = limits_.chunk_multiple;
    int32_t priority = std::numeric_limits<int32_t>::min();  // of long ones
    for (const StepPlan::Entry& entry : plan_.entries) {
      const SequenceView& s = Before(entry.id);
      if (Fits(s) || Decodes(s)) continue;
      long_tokens += entry.num_tokens;
      priority = std::max(priority, s.priority);
      least = std::max(least, s.whole_tokens - s.num_computed);
    }
    // Tokens were kept for one of higher priority that then found no room.
    for (const SequenceView& s : waiting_) {
      if (s.priority > priority && admitted_.count(s.id) == 0) {
        return absl::OkStatus();
      }
    }
    const int64_t half = std::min(tokens / 2, tokens - least);
    if (long_tokens <= tokens - half) return absl::OkStatus();
    int64_t lacking = 0;  // tokens that short ones could have had
    int64_t had = 0;
    int64_t slack = 0;  // by where chunks must end
    int64_t slots = slots_left_;
    int64_t pages = pages_left_;
    const auto count = [&](const SequenceView& s, int64_t ran) {
      if (!Fits(s) || s.priority < priority || s.from_host) return;
      had += ran;
      slack += limits_.chunk_multiple - 1;
      // What is whole may find what is left of the half too little.
      if (ran == 0 && s.num_computed < s.whole_tokens) return;
      // A chunk that ends within it ends at a multiple.
      const int64_t more =
          std::min(Rest(s), MostOf(s)) - ran - (limits_.chunk_multiple - 1);
      lacking += std::max<int64_t>(0, more);
    };
    for (const auto& [id, s] : before_) {
      if (Preempted(id) || !s.has_work || Decodes(s)) continue;
      // One that lacks a page may be unable to use its share.
      count(s, Missing(s, s.num_tokens) == 0 ? Ran(id) : Rest(s));
    }
    bool stopped = false;  // perhaps
    for (const SequenceView& s : waiting_) {
      if (admitted_.count(s.id) > 0) {
        count(s, Ran(s.id));
      } else if (!stopped && slots > 0 && pages >= PagesFor(s.num_tokens + 1)) {
        --slots;
        pages -= PagesFor(s.num_tokens + 1);
        count(s, 0);
      } else {
        stopped |= s.passes >= kMaxPasses;
      }
    }
    const bool bounded =
        limits_.max_prompt_tokens < std::numeric_limits<int64_t>::max();
    if (!bounded && lacking > 0 &&
        had + slack < std::min(half, had + lacking)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "prompts that fit have half: long ones have ", long_tokens, " of ",
          tokens, ", short ones ", had, " and lack ", lacking));
    }
    return absl::OkStatus();
  }

  const SequenceView& Before(uint64_t id) const {
    const auto found = before_.find(id);
    return found != before_.end() ? found->second : admitted_.at(id);
  }
  int64_t Ran(uint64_t id) const {
    for (const StepPlan::Entry& entry : plan_.entries) {
      if (entry.id == id) return entry.num_tokens;
    }
    return 0;
  }

  // Whether taking everything that yields to `s` would make room.
  bool CouldFit(const SequenceView& s) const {
    std::set<uint64_t> gone = preempted_;
    int64_t slots = slots_left_;
    bool alone = admitted_.empty();
    for (const auto& [id, resident] : resident_) {
      if (Preempted(id)) continue;
      const SequenceView& other = resident;
      const bool above_admitted =
          other.has_work &&
          std::any_of(admitted_.begin(), admitted_.end(), [&](const auto& a) {
            return RanksAbove(other, a.second);
          });
      if (other.ending || above_admitted || !YieldsToWaiting(other, s)) {
        alone = false;
        continue;
      }
      gone.insert(id);
      ++slots;
    }
    const int64_t pages =
        pages_left_ + Freed(gone, resident_) - Freed(preempted_, resident_);
    return slots > 0 && (pages >= PagesFor(s.num_tokens + 1) ||
                         (alone && pages >= PagesFor(s.num_tokens)));
  }

  // Whether taking everything that yielded to `s` before the plan would not
  // have made room.
  bool LackedPages(const SequenceView& s) const {
    std::set<uint64_t> gone;
    for (const auto& [id, other] : before_) {
      if (!other.ending && YieldsToWaiting(other, s)) gone.insert(id);
    }
    const int64_t pages = pages_at_first_ + Freed(gone, before_);
    return pages < PagesFor(s.num_tokens);
  }

  // Whether a page could have been found for resident `s`.
  bool PageToBeHad(const SequenceView& s) const {
    std::set<uint64_t> gone = preempted_;
    for (const auto& [id, other] : resident_) {
      if (id != s.id && !other.ending &&
          (!other.has_work || RanksAbove(s, other))) {
        gone.insert(id);
      }
    }
    return pages_left_ + Freed(gone, resident_) - Freed(preempted_, resident_) >
           0;
  }

  absl::Status CheckProgress() const {
    bool work = !waiting_.empty();
    const SequenceView* highest = nullptr;
    for (const auto& [id, s] : resident_) {
      if (!s.has_work) continue;
      work = true;
      if (highest == nullptr || RanksAbove(s, *highest)) highest = &s;
      const bool starved =
          Missing(s, s.num_computed + 1) > 0 && !PageToBeHad(s);
      if (s.num_tokens - s.num_computed == 1 && !Runs(id) && !Preempted(id) &&
          !starved && !s.from_host) {
        return Broken("a decoding resident runs", id);
      }
    }
    // The copy of one that waits for it goes on by itself; and it may be a
    // prompt that waits for its turn while others run.
    const bool paced = highest != nullptr && IsPaced(*highest) &&
                       limits_.max_prompt_tokens < limits_.chunk_multiple &&
                       !plan_.entries.empty();
    if (highest != nullptr && !Runs(highest->id) && !paced &&
        !highest->from_host) {
      bool yielded = false;
      for (const auto& [id, s] : admitted_)
        yielded |= RanksAbove(s, *highest) ||
                   (s.passed_over && s.whole_tokens > s.num_computed);
      if (!yielded)
        return Broken("the highest of the residents runs", highest->id);
    }
    const bool ending =
        std::any_of(resident_.begin(), resident_.end(),
                    [](const auto& s) { return s.second.ending; });
    if (work && plan_.entries.empty() && !ending)
      return absl::FailedPreconditionError("there is work and nothing runs");
    return absl::OkStatus();
  }

  const SchedulerLimits limits_;
  int64_t pages_left_;
  int64_t slots_left_;
  int64_t tokens_left_;
  int64_t prompt_tokens_left_;
  // Nothing but paced prompts runs: the bound for them may have been lifted.
  bool only_paced_ = true;
  const StepPlan& plan_;
  Views resident_;  // `pages` as after the plan
  Views before_;    // as before it
  int64_t pages_at_first_;
  std::vector<SequenceView> waiting_;  // in rank order
  std::set<uint64_t> preempted_;
  Views admitted_;
  std::set<uint64_t> entries_;
  std::map<uint64_t, int64_t> granted_;  // pages that residents gain
};

}  // namespace

absl::Status CheckPlan(const SchedulerLimits& limits, int64_t free_pages,
                       int64_t free_slots,
                       absl::Span<const SequenceView> resident,
                       absl::Span<const SequenceView> waiting,
                       const StepPlan& plan) {
  return Checker(limits, free_pages, free_slots, resident, waiting, plan)
      .Check();
}

}  // namespace recurve
