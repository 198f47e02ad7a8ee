#include "tests/gpu/attention_gpu_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "kernels/attention/prefill/attention_prefill_cuda.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/kernels/lrpe_table.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

// A page id outside every pool: following it leaves the address space.
constexpr int32_t kInvalidPage = 2147480000;
constexpr int64_t kPageGap = 8;  // elements
constexpr int64_t kOutGap = 8;   // elements between rows of results

int64_t ElementBytes(WeightType type) { return WeightBytes(type); }

float ReadElement(WeightType type, const uint8_t* from) {
  if (type == WeightType::kFloat32) {
    float value;
    std::memcpy(&value, from, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return type == WeightType::kBFloat16 ? BFloat16ToFloat(bits)
                                       : Float16ToFloat(bits);
}

// Bytes that are NaN in every type.
std::vector<uint8_t> Poison(int64_t bytes) {
  return std::vector<uint8_t>(bytes, 0xff);
}

}  // namespace

double AttentionRounding(WeightType type) {
  return type == WeightType::kFloat32   ? 6e-7
         : type == WeightType::kFloat16 ? 5e-4
                                        : 4e-3;
}

float RoundedTo(WeightType type, float value) {
  if (type == WeightType::kFloat32) return value;
  return type == WeightType::kBFloat16 ? BFloat16ToFloat(FloatToBFloat16(value))
                                       : Float16ToFloat(FloatToFloat16(value));
}

std::string Describe(const AttentionGpuConfig& config) {
  const AttentionShape& s = config.of.shape;
  return "H" + std::to_string(s.num_heads) + " G" +
         std::to_string(s.num_kv_heads) + " D" + std::to_string(s.head_dim) +
         " E" + std::to_string(s.value_dim) +
         (config.element == WeightType::kFloat32    ? " fp32"
          : config.element == WeightType::kBFloat16 ? " bf16"
                                                    : " fp16") +
         (config.of.position == LrpeType::kRotate ? " rotate" : "") +
         (config.of.norms ? " norms" : "") + (config.of.gate ? " gate" : "");
}

// The inputs and outputs of some rows, on the device.
struct AttentionGpuCache::Step {
  std::vector<float> in;  // rows as AttentionTokens has them
  std::vector<int32_t> sequence;
  std::vector<int64_t> positions;
  std::vector<int32_t> lengths;
  int64_t stride;
  std::unique_ptr<DeviceBuffer<float>> device_in;
  std::unique_ptr<DeviceBuffer<float>> gate;
  std::unique_ptr<DeviceBuffer<int32_t>> device_sequence;
  std::unique_ptr<DeviceBuffer<int64_t>> device_positions;
  std::unique_ptr<DeviceBuffer<float>> cos;
  std::unique_ptr<DeviceBuffer<float>> sin;
  std::unique_ptr<DeviceBuffer<uint8_t>> queries;
  std::unique_ptr<DeviceBuffer<uint8_t>> out;
  std::vector<uint8_t> host_schedule;  // of decode, as what follows
  std::unique_ptr<DeviceBuffer<uint8_t>> schedule;
  std::unique_ptr<DeviceBuffer<uint8_t>> scratch;
  int64_t gate_stride;
  int64_t out_stride;
  int rows;
};

AttentionGpuCache::AttentionGpuCache(
    const AttentionGpuConfig& config,
    const std::vector<const AttentionTokens*>& sequences)
    : config_(config),
      sequences_(sequences),
      layout_(config.of.shape, AttentionOrderOf(config.element)),
      page_stride_(layout_.page_elements + kPageGap),
      owned_(sequences.size()),
      appended_(sequences.size(), 0) {
  AttentionDevice device = {};
  EXPECT_EQ(GetAttentionDevice(&device), cudaSuccess);
  plan = PlanAttention(config.of.shape, config.element, device);
  EXPECT_GT(plan.blocks, 0);
  int64_t wanted = 0;
  for (const AttentionTokens* tokens : sequences_) {
    const int64_t pages = AttentionPages(tokens->length);
    wanted += pages;
    table_stride_ = std::max(table_stride_, pages + 1);
  }
  int64_t pool = wanted + wanted / 3 + 2;
  if (pool % 7 == 0) ++pool;
  int64_t next = 1;
  std::vector<int32_t> table(sequences_.size() * table_stride_, kInvalidPage);
  for (size_t b = 0; b < sequences_.size(); ++b) {
    for (int i = 0; i < AttentionPages(sequences_[b]->length); ++i, ++next) {
      owned_[b].push_back(static_cast<int32_t>(7 * next % pool));
      table[b * table_stride_ + i] = owned_[b].back();
    }
  }
  pages_ = std::make_unique<DeviceBuffer<uint8_t>>(
      Poison(pool * page_stride_ * ElementBytes(config.element)));
  host_table_ = table;
  table_ = std::make_unique<DeviceBuffer<int32_t>>(table);
  q_weight_ = std::make_unique<DeviceBuffer<float>>(sequences_[0]->q_weight);
  k_weight_ = std::make_unique<DeviceBuffer<float>>(sequences_[0]->k_weight);
}

AttentionCudaCache AttentionGpuCache::View() const {
  return {config_.element, pages_->data(), page_stride_, table_->data(),
          table_stride_};
}

int64_t AttentionGpuCache::Place(int sequence, int token) const {
  return owned_[sequence][token / kAttentionPageTokens] * page_stride_;
}

void AttentionGpuCache::Refresh() const {
  if (stale_) host_pages_ = pages_->Read();
  stale_ = false;
}

float AttentionGpuCache::Key(int sequence, int token, int64_t g,
                             int64_t i) const {
  Refresh();
  const int64_t at =
      Place(sequence, token) + layout_.K(token % kAttentionPageTokens, g, i);
  return ReadElement(config_.element,
                     host_pages_.data() + at * ElementBytes(config_.element));
}

float AttentionGpuCache::Value(int sequence, int token, int64_t g,
                               int64_t i) const {
  Refresh();
  const int64_t at =
      Place(sequence, token) + layout_.V(token % kAttentionPageTokens, g, i);
  return ReadElement(config_.element,
                     host_pages_.data() + at * ElementBytes(config_.element));
}

std::vector<bool> AttentionGpuCache::Used() const {
  Refresh();
  const int64_t bytes = ElementBytes(config_.element);
  std::vector<bool> used(host_pages_.size(), false);
  for (size_t b = 0; b < sequences_.size(); ++b) {
    for (int t = 0; t < appended_[b]; ++t) {
      const int64_t m = t % kAttentionPageTokens;
      for (int64_t g = 0; g < config_.of.shape.num_kv_heads; ++g) {
        for (int64_t i = 0; i < config_.of.shape.head_dim; ++i) {
          const int64_t at = Place(static_cast<int>(b), t) + layout_.K(m, g, i);
          std::fill_n(used.begin() + at * bytes, bytes, true);
        }
        for (int64_t i = 0; i < config_.of.shape.value_dim; ++i) {
          const int64_t at = Place(static_cast<int>(b), t) + layout_.V(m, g, i);
          std::fill_n(used.begin() + at * bytes, bytes, true);
        }
      }
    }
  }
  return used;
}

std::unique_ptr<AttentionGpuCache::Step> AttentionGpuCache::MakeStep(
    const std::vector<AttentionGpuRow>& rows) const {
  auto step = std::make_unique<Step>();
  const AttentionTokens& t = *sequences_[0];
  const AttentionShape& s = config_.of.shape;
  const int64_t width = s.num_heads * s.value_dim;
  step->rows = static_cast<int>(rows.size());
  step->stride = aligned ? (t.stride + 3) / 4 * 4 : t.stride;
  step->gate_stride = width + 4;
  step->out_stride = width + kOutGap;
  std::vector<float> gate(step->rows * step->gate_stride, kNaN);
  std::vector<int64_t> angles;
  for (int r = 0; r < step->rows; ++r) {
    const AttentionTokens& tokens = *sequences_[rows[r].sequence];
    const int position = std::max(rows[r].length - 1, 0);
    const float* from = tokens.Row(position);
    step->in.insert(step->in.end(), from, from + t.stride);
    step->in.resize((r + 1) * step->stride, kNaN);
    if (config_.of.gate && rows[r].length > 0) {
      std::copy_n(from + t.gate, width, gate.begin() + r * step->gate_stride);
    }
    step->sequence.push_back(rows[r].sequence);
    step->positions.push_back(rows[r].length - 1);
    step->lengths.push_back(rows[r].length);
    angles.push_back(position);
  }
  ThreadPool pool(1);
  LrpeTestTable lrpe(config_.of.position, s.head_dim, config_.of.base, angles,
                     pool);
  if (lrpe.cos.empty()) lrpe.cos = lrpe.sin = {kNaN};
  step->device_in = std::make_unique<DeviceBuffer<float>>(step->in);
  step->gate = std::make_unique<DeviceBuffer<float>>(gate);
  step->device_sequence =
      std::make_unique<DeviceBuffer<int32_t>>(step->sequence);
  step->device_positions =
      std::make_unique<DeviceBuffer<int64_t>>(step->positions);
  step->cos = std::make_unique<DeviceBuffer<float>>(lrpe.cos);
  step->sin = std::make_unique<DeviceBuffer<float>>(lrpe.sin);
  step->queries = std::make_unique<DeviceBuffer<uint8_t>>(
      Poison(AttentionQueryBytes(s, config_.element, step->rows)));
  step->out = std::make_unique<DeviceBuffer<uint8_t>>(
      Poison(step->rows * step->out_stride * WeightBytes(out_type)));
  return step;
}

AttentionCudaAppendParams AttentionGpuCache::AppendParams(
    const Step& step) const {
  const AttentionTokens& t = *sequences_[0];
  AttentionCudaAppendParams p = {};
  p.shape = config_.of.shape;
  p.cache = View();
  p.row_sequence = step.device_sequence->data();
  p.positions = step.device_positions->data();
  p.rows = step.rows;
  p.k = step.device_in->data() + t.k;
  p.v = step.device_in->data() + t.v;
  p.stride = step.stride;
  p.position = {config_.of.position, step.cos->data(), step.sin->data()};
  p.k_norm = {config_.of.norms ? k_weight_->data() : nullptr, t.eps};
  p.q = step.device_in->data() + t.q;
  p.query_stride = step.stride;
  p.q_norm = {config_.of.norms ? q_weight_->data() : nullptr, t.eps};
  p.scale = t.Scale();
  p.queries = step.queries->data();
  return p;
}

void AttentionGpuCache::Append(int sequence, int begin, int end) {
  std::vector<AttentionGpuRow> rows;
  for (int t = begin; t < end; ++t) rows.push_back({sequence, t + 1});
  if (rows.empty()) return;
  const std::unique_ptr<Step> step = MakeStep(rows);
  EXPECT_EQ(LaunchAttentionAppend(AppendParams(*step), nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Note(rows);
}

void AttentionGpuCache::AppendAll() {
  for (size_t b = 0; b < sequences_.size(); ++b) {
    Append(static_cast<int>(b), 0, static_cast<int>(sequences_[b]->length));
  }
}

std::vector<float> AttentionGpuCache::Compact(const Step& step) const {
  const AttentionShape& s = config_.of.shape;
  const int64_t width = s.num_heads * s.value_dim;
  const int64_t bytes = WeightBytes(out_type);
  const std::vector<uint8_t> raw = step.out->Read();
  std::vector<float> compact;
  for (int r = 0; r < step.rows; ++r) {
    for (int64_t i = 0; i < step.out_stride; ++i) {
      const float x =
          ReadElement(out_type, raw.data() + (r * step.out_stride + i) * bytes);
      if (i < width) {
        compact.push_back(x);
      } else {
        EXPECT_TRUE(std::isnan(x)) << "gap after row " << r;
      }
    }
  }
  return compact;
}

AttentionCudaDecodeParams AttentionGpuCache::DecodeParams(
    const Step& step) const {
  AttentionCudaDecodeParams p = {};
  p.shape = config_.of.shape;
  p.cache = View();
  p.rows = step.rows;
  p.queries = step.queries->data();
  p.fresh_tokens = fresh_tokens;
  p.out = {out_type, step.out->data(), step.out_stride,
           config_.of.gate ? step.gate->data() : nullptr, step.gate_stride};
  p.schedule = step.schedule->data();
  p.scratch = step.scratch->data();
  p.scratch_bytes = AttentionScratchBytes(plan, step.rows, table_stride_);
  return p;
}

// The work of a decode step, and memory for it.
void AttentionGpuCache::Share(Step* step) const {
  step->host_schedule.resize(AttentionScheduleParts(plan, step->rows).bytes);
  EXPECT_TRUE(MakeAttentionSchedule(
      {step->lengths.data(), step->sequence.data(), step->rows,
       host_pages ? host_table_.data() : nullptr, table_stride_},
      plan, step->host_schedule.data()));
  step->schedule = std::make_unique<DeviceBuffer<uint8_t>>(step->host_schedule);
  step->scratch = std::make_unique<DeviceBuffer<uint8_t>>(
      Poison(AttentionScratchBytes(plan, step->rows, table_stride_)));
}

void AttentionGpuCache::Note(const std::vector<AttentionGpuRow>& rows) {
  for (const AttentionGpuRow& row : rows) {
    appended_[row.sequence] = std::max(appended_[row.sequence], row.length);
  }
  stale_ = true;
}

std::vector<float> AttentionGpuCache::Decode(
    const std::vector<AttentionGpuRow>& rows, bool append) {
  const std::unique_ptr<Step> step = MakeStep(rows);
  Share(step.get());
  AttentionCudaAppendParams appends = AppendParams(*step);
  appends.query_rows = step->rows;
  if (append) {
    Note(rows);
  } else {
    step->device_positions->Write(std::vector<int64_t>(step->rows, -1));
  }
  EXPECT_EQ(LaunchAttentionAppend(appends, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchAttentionDecode(DecodeParams(*step), plan, nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(step->schedule->Read(), step->host_schedule)
      << "the schedule cannot be used again";
  return Compact(*step);
}

std::vector<float> AttentionGpuCache::Replay(
    const std::vector<AttentionGpuRow>& captured,
    const std::vector<AttentionGpuRow>& rows) {
  const std::unique_ptr<Step> step = MakeStep(captured);
  Share(step.get());
  AttentionCudaAppendParams appends = AppendParams(*step);
  appends.query_rows = step->rows;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  EXPECT_EQ(LaunchAttentionAppend(appends, stream), cudaSuccess);
  EXPECT_EQ(LaunchAttentionDecode(DecodeParams(*step), plan, stream),
            cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  // The same memory with other contents.
  const std::unique_ptr<Step> next = MakeStep(rows);
  Share(next.get());
  step->device_in->Write(next->device_in->Read());
  step->gate->Write(next->gate->Read());
  step->device_sequence->Write(next->sequence);
  step->device_positions->Write(next->positions);
  step->cos->Write(next->cos->Read());
  step->sin->Write(next->sin->Read());
  step->schedule->Write(next->host_schedule);
  Note(rows);
  // The second launch finds what the first left in the schedule.
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return Compact(*step);
}

std::vector<uint8_t> AttentionGpuCache::FormQueries(
    const std::vector<AttentionGpuRow>& rows, int first, int count) {
  const std::unique_ptr<Step> step = MakeStep(rows);
  step->device_positions->Write(std::vector<int64_t>(step->rows, -1));
  AttentionCudaAppendParams appends = AppendParams(*step);
  appends.first_query = first;
  appends.query_rows = count;
  EXPECT_EQ(LaunchAttentionAppend(appends, nullptr), cudaSuccess);
  std::vector<uint8_t> queries = step->queries->Read();
  queries.resize(AttentionQueryBytes(config_.of.shape, config_.element, count));
  return queries;
}

cudaError_t AttentionGpuCache::TryDecode(
    const std::function<void(AttentionCudaDecodeParams*, AttentionPlan*)>&
        change) {
  const std::unique_ptr<Step> step = MakeStep({{0, 1}});
  Share(step.get());
  AttentionCudaDecodeParams p = DecodeParams(*step);
  AttentionPlan other = plan;
  change(&p, &other);
  return LaunchAttentionDecode(p, other, nullptr);
}

std::vector<float> AttentionGpuCache::Prefill(
    const std::vector<Chunk>& chunks) {
  std::vector<AttentionGpuRow> rows;
  std::vector<int32_t> starts = {0};
  std::vector<int32_t> lengths;
  std::vector<int32_t> sequence;
  for (const Chunk& chunk : chunks) {
    for (int t = chunk.begin; t < chunk.end; ++t) {
      rows.push_back({chunk.sequence, t + 1});
    }
    starts.push_back(static_cast<int32_t>(rows.size()));
    lengths.push_back(chunk.end);
    sequence.push_back(chunk.sequence);
  }
  const std::unique_ptr<Step> step = MakeStep(rows);
  const AttentionPrefillPlan prefill = PlanAttentionPrefill(
      config_.of.shape, config_.element,
      {static_cast<int>(chunks.size()), static_cast<int64_t>(rows.size())});
  EXPECT_GT(prefill.query_tiles, 0);
  DeviceBuffer<int32_t> device_starts(starts);
  DeviceBuffer<int32_t> device_lengths(lengths);
  DeviceBuffer<int32_t> device_rows(sequence);
  DeviceBuffer<uint8_t> schedule(Poison(prefill.schedule_bytes));
  DeviceBuffer<uint8_t> scratch(
      Poison(std::max<int64_t>(prefill.scratch_bytes, 1)));
  const AttentionTokens& t = *sequences_[0];
  AttentionPrefillParams p = {};
  p.shape = config_.of.shape;
  p.cache = View();
  p.q = step->device_in->data() + t.q;
  p.stride = step->stride;
  p.position = {config_.of.position, step->cos->data(), step->sin->data()};
  p.norm = {config_.of.norms ? q_weight_->data() : nullptr, t.eps};
  p.scale = t.Scale();
  p.out = {out_type, step->out->data(), step->out_stride,
           config_.of.gate ? step->gate->data() : nullptr, step->gate_stride};
  p.schedule = schedule.data();
  p.scratch = scratch.data();
  EXPECT_EQ(LaunchAttentionPrefillSchedule(
                {device_starts.data(), device_lengths.data(),
                 device_rows.data(), schedule.data()},
                prefill, nullptr),
            cudaSuccess);
  EXPECT_EQ(LaunchAttentionPrefill(p, prefill, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return Compact(*step);
}

std::vector<double> AttentionGpuCache::Oracle(
    const AttentionGpuRow& row) const {
  const AttentionShape& s = config_.of.shape;
  const AttentionTokens& tokens = *sequences_[row.sequence];
  const float* in = tokens.Row(std::max(row.length - 1, 0));
  std::vector<double> out(s.num_heads * s.value_dim, 0.0);
  if (row.length == 0) return out;
  const int64_t group = AttentionGroup(s);
  for (int64_t g = 0; g < s.num_kv_heads; ++g) {
    std::vector<double> keys;
    std::vector<double> values;
    for (int m = 0; m < row.length; ++m) {
      for (int64_t i = 0; i < s.head_dim; ++i) {
        keys.push_back(Key(row.sequence, m, g, i));
      }
      for (int64_t i = 0; i < s.value_dim; ++i) {
        values.push_back(Value(row.sequence, m, g, i));
      }
    }
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      std::vector<double> query(in + tokens.q + h * s.head_dim,
                                in + tokens.q + (h + 1) * s.head_dim);
      if (config_.of.norms) {
        double mean = 0.0;
        for (double x : query) mean += x * x;
        mean /= static_cast<double>(s.head_dim);
        for (int64_t i = 0; i < s.head_dim; ++i) {
          query[i] *= tokens.q_weight[i] / std::sqrt(mean + tokens.eps);
        }
      }
      query = LrpeOracle(config_.of.position, query, row.length - 1,
                         config_.of.base);
      std::vector<double> scores(row.length);
      for (int m = 0; m < row.length; ++m) {
        double dot = 0.0;
        for (int64_t i = 0; i < s.head_dim; ++i) {
          dot += query[i] * keys[m * s.head_dim + i];
        }
        scores[m] = dot * tokens.Scale();
      }
      const double max = *std::max_element(scores.begin(), scores.end());
      double total = 0.0;
      double* to = out.data() + h * s.value_dim;
      for (int m = 0; m < row.length; ++m) {
        const double weight = std::exp(scores[m] - max);
        total += weight;
        for (int64_t e = 0; e < s.value_dim; ++e) {
          to[e] += weight * values[m * s.value_dim + e];
        }
      }
      for (int64_t e = 0; e < s.value_dim; ++e) {
        to[e] /= total;
        if (config_.of.gate) {
          const double x = in[tokens.gate + h * s.value_dim + e];
          to[e] /= 1.0 + std::exp(-x);
        }
      }
    }
  }
  return out;
}

}  // namespace recurve
