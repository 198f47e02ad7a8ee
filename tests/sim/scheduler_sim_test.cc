// The scheduler in a closed loop without an engine: sequences arrive, stall,
// come back with more, are cancelled; every plan is checked and applied, and in
// the end every sequence has all its tokens and all memory is free.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "engine/serving/scheduler.h"
#include "gtest/gtest.h"
#include "tests/testing/plan_checker.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    limits_.page_tokens = random_.Chance(0.15) ? 0 : random_.Uniform(1, 8);
    free_slots_ = total_slots_ = random_.Uniform(1, 8);
    if (random_.Chance(0.3)) {
      limits_.chunk_multiple = random_.Uniform(2, 6);
      limits_.page_tokens *= limits_.chunk_multiple;
    }
    limits_.max_batched_tokens =
        total_slots_ + limits_.chunk_multiple - 1 + random_.Uniform(0, 40);
    limits_.max_chunk_tokens =
        random_.Uniform(limits_.chunk_multiple, limits_.max_batched_tokens);
    total_pages_ = limits_.page_tokens == 0 ? 0 : random_.Uniform(1, 40);
    free_pages_ = total_pages_;
    max_tokens_ =
        limits_.page_tokens == 0
            ? 60
            : std::min<int64_t>(60, total_pages_ * limits_.page_tokens);
    arrival_rate_ =
        0.02 + 0.5 * static_cast<double>(random_.Uniform(0, 100)) / 100;
    num_priorities_ = random_.Uniform(1, 3);
    save_rate_ = random_.Chance(0.5) ? 0.7 : 0;
    num_flows_ = random_.Chance(0.5) ? 1 : random_.Uniform(2, 4);
  }

  // Stops at the first failure.
  void Run(int64_t busy_steps) {
    for (int64_t step = 0; step < busy_steps; ++step) {
      if (random_.Chance(arrival_rate_)) Arrive();
      Disturb();
      ASSERT_NO_FATAL_FAILURE(Step());
    }
    // No more arrivals, stalls or departures: the rest must finish. Each step
    // computes a token, and a token is recomputed only after a preemption by a
    // sequence that ranks above, so the work is bounded.
    calm_ = true;
    for (Sequence& s : sequences_) s.asleep = false;
    int64_t steps = 0;
    while (!sequences_.empty()) {
      ASSERT_LT(++steps, 200'000) << sequences_.size() << " never finish";
      ASSERT_NO_FATAL_FAILURE(Step());
    }
    EXPECT_EQ(free_pages_, total_pages_);
    EXPECT_EQ(free_slots_, total_slots_);
  }

  int64_t preemptions() const { return preemptions_; }
  int64_t finished() const { return finished_; }
  int64_t restores() const { return restores_; }
  int64_t passes() const { return passes_; }

 private:
  struct Sequence {
    SequenceView view;
    int64_t generate_left;
    int64_t commands_left;  // after the current one
    bool resident = false;
    bool asleep = false;  // stalled, or idle between commands
  };

  void Arrive() {
    const int64_t prompt = random_.Uniform(1, max_tokens_);
    Sequence s;
    s.view = {
        next_id_, static_cast<int32_t>(random_.Uniform(1, num_priorities_)),
        next_id_, prompt,
        0,        0,
        true};
    s.view.flow = static_cast<uint32_t>(random_.Uniform(1, num_flows_));
    s.view.weight = s.view.flow;
    s.view.prompt_tokens = prompt;
    s.generate_left = random_.Uniform(0, max_tokens_ - prompt);
    s.commands_left = random_.Chance(0.3) ? random_.Uniform(1, 3) : 0;
    ++next_id_;
    sequences_.push_back(s);
  }

  void Disturb() {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& s = sequences_[i];
      if (s.asleep ? random_.Chance(0.1) : random_.Chance(0.02))
        s.asleep = !s.asleep;
      if (random_.Chance(0.003)) Remove(i--);
    }
  }

  void Release(Sequence& s) {
    free_pages_ += s.view.pages;
    free_slots_ += s.resident;
    s.view.pages = 0;
    s.resident = false;
  }

  void Remove(size_t index) {
    Release(sequences_[index]);
    sequences_.erase(sequences_.begin() + static_cast<int64_t>(index));
  }

  size_t IndexOf(uint64_t id) const {
    const auto found =
        std::find_if(sequences_.begin(), sequences_.end(),
                     [id](const Sequence& s) { return s.view.id == id; });
    return static_cast<size_t>(found - sequences_.begin());
  }

  int64_t PagesFor(int64_t tokens) const {
    return limits_.page_tokens == 0
               ? 0
               : (tokens + limits_.page_tokens - 1) / limits_.page_tokens;
  }

  void Grow(Sequence& s, int64_t tokens) {
    const int64_t pages = std::max<int64_t>(0, PagesFor(tokens) - s.view.pages);
    s.view.pages += pages;
    free_pages_ -= pages;
  }

  void Step() {
    std::vector<SequenceView> resident;
    std::vector<SequenceView> waiting;
    bool work = false;
    for (Sequence& s : sequences_) {
      s.view.has_work = !s.asleep;
      // A copy arrives sooner or later.
      if (s.resident && random_.Chance(0.5)) s.view.from_host = false;
      s.view.paced = random_.Chance(0.7);
      work |= s.view.has_work;
    }
    if (!work) return;
    std::vector<SequenceView> views;
    for (const Sequence& s : sequences_) views.push_back(s.view);
    AssignTurns(absl::MakeSpan(views));
    for (size_t i = 0; i < views.size(); ++i) {
      if (sequences_[i].resident) {
        resident.push_back(views[i]);
      } else if (views[i].has_work) {
        waiting.push_back(views[i]);
      }
    }
    // Prompts are held up, bounded, or free.
    limits_.max_prompt_tokens = std::numeric_limits<int64_t>::max();
    if (random_.Chance(0.4)) {
      limits_.max_prompt_tokens =
          random_.Chance(0.5) ? 0
                              : limits_.chunk_multiple + random_.Uniform(0, 20);
    }
    const StepPlan plan =
        PlanStep(limits_, free_pages_, free_slots_, resident, waiting);
    const absl::Status status =
        CheckPlan(limits_, free_pages_, free_slots_, resident, waiting, plan);
    ASSERT_TRUE(status.ok()) << status;
    Apply(plan);
    ASSERT_GE(free_pages_, 0);
    ASSERT_GE(free_slots_, 0);
  }

  void Apply(const StepPlan& plan) {
    for (uint64_t id : plan.preempt) {
      Sequence& s = sequences_[IndexOf(id)];
      Release(s);
      s.view.from_host = s.view.num_computed > 0 && random_.Chance(save_rate_);
      if (!s.view.from_host) {
        s.view.num_computed = 0;
        s.view.prompt_tokens = s.view.num_tokens;
      }
      ++preemptions_;
    }
    for (uint64_t id : plan.admit) {
      Sequence& s = sequences_[IndexOf(id)];
      s.resident = true;
      s.view.passes = 0;
      --free_slots_;
      restores_ += s.view.from_host;
      Grow(s, s.view.num_tokens);
    }
    for (Sequence& s : sequences_) s.view.passed_over = false;
    for (uint64_t id : plan.passed_over) {
      sequences_[IndexOf(id)].view.passed_over = true;
    }
    for (uint64_t id : plan.passed) {
      ++sequences_[IndexOf(id)].view.passes;
      ++passes_;
    }
    for (const StepPlan::Entry& entry : plan.entries) {
      const size_t index = IndexOf(entry.id);
      Sequence& s = sequences_[index];
      s.view.from_host = false;  // the step waited
      Grow(s, s.view.num_computed + entry.num_tokens);
      s.view.num_computed += entry.num_tokens;
      if (s.view.num_computed == s.view.num_tokens) Complete(index);
    }
  }

  // All known tokens are computed: the next is drawn, or the command ends.
  void Complete(size_t index) {
    Sequence& s = sequences_[index];
    if (s.generate_left > 0) {
      --s.generate_left;
      ++s.view.num_tokens;
    } else if (s.commands_left > 0 && s.view.num_tokens < max_tokens_) {
      --s.commands_left;
      const int64_t append =
          random_.Uniform(1, max_tokens_ - s.view.num_tokens);
      s.view.num_tokens += append;
      s.view.prompt_tokens = s.view.num_tokens - s.view.num_computed;
      s.generate_left = random_.Uniform(0, max_tokens_ - s.view.num_tokens);
      s.asleep = !calm_ && random_.Chance(0.7);
    } else {
      Remove(index);
      ++finished_;
    }
  }

  TestRandom random_;
  SchedulerLimits limits_{};
  int64_t total_pages_;
  int64_t free_pages_;
  int64_t total_slots_;
  int64_t free_slots_;
  int64_t max_tokens_;
  double arrival_rate_;
  int64_t num_priorities_;
  int64_t num_flows_;
  uint64_t next_id_ = 1;
  bool calm_ = false;
  int64_t preemptions_ = 0;
  int64_t finished_ = 0;
  double save_rate_ = 0;
  int64_t restores_ = 0;
  int64_t passes_ = 0;
  std::vector<Sequence> sequences_;
};

TEST(SchedulerSimTest, EverySequenceFinishesAndEveryPlanIsSound) {
  int64_t preemptions = 0;
  int64_t finished = 0;
  int64_t restores = 0;
  int64_t passes = 0;
  for (uint64_t seed = 0; seed < SimSeeds(3000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Simulation simulation(seed);
    simulation.Run(/*busy_steps=*/300);
    if (HasFailure()) return;
    preemptions += simulation.preemptions();
    finished += simulation.finished();
    restores += simulation.restores();
    passes += simulation.passes();
  }
  // The simulation is worth something only if these happen.
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(finished, 0);
  EXPECT_GT(restores, 0);
  EXPECT_GT(passes, 0);
}

}  // namespace
}  // namespace recurve
