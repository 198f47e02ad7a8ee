#include "engine/program/plan.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/emit.h"
#include "engine/models/glu/gated_unit.h"
#include "engine/models/linear/linear_layer.h"
#include "engine/models/tpa/tpa_layer.h"
#include "engine/models/tpe/tpe_layer.h"
#include "engine/program/print_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Form = Launch::Form;

// Plans read no weights.
TensorView Tensor(int64_t rows, int64_t cols, DType type = DType::kBFloat16) {
  TensorView view;
  view.dtype = type;
  view.shape = {rows, cols};
  return view;
}

struct Sizes {
  int64_t hidden = 1664;
  int64_t inner = 4437;
  int64_t heads = 26;
  int64_t vocab = 50304;
  DType type = DType::kBFloat16;
};

NormDefinition Rms() {
  NormDefinition norm;
  norm.eps = 1e-6;
  return norm;
}

std::shared_ptr<const LayerPart> Tpa(const Sizes& s) {
  TpaDefinition tpa;
  tpa.config.shape = {s.heads, 64, 64, 6, 2};
  const auto factors = [&](int64_t rank) {
    return FactorTensors{Tensor(rank * s.heads, s.hidden, s.type),
                         Tensor(rank * 64, s.hidden, s.type)};
  };
  tpa.tensors = {factors(6), factors(2), factors(2),
                 Tensor(s.hidden, s.heads * 64, s.type)};
  return std::make_shared<TpaLayer>(std::move(tpa));
}

std::shared_ptr<const LayerPart> Linear(const Sizes& s, bool gated) {
  LinearDefinition linear;
  LinearConfig& c = linear.config;
  c.num_heads = s.hidden / 64;
  c.head_dim = c.value_dim = 64;
  c.log_decay.assign(c.num_heads, -0.1);
  const TensorView square = Tensor(s.hidden, s.hidden, s.type);
  for (FactorTensors* factors :
       {&linear.tensors.q, &linear.tensors.k, &linear.tensors.v}) {
    factors->b = square;
  }
  linear.tensors.out = square;
  if (gated) {
    c.output_gate = Activation::kSigmoid;
    linear.tensors.gate_in = Tensor(64, s.hidden, s.type);
    linear.tensors.gate_out = Tensor(s.hidden, 64, s.type);
  }
  linear.norm = Rms();
  return std::make_shared<LinearLayer>(std::move(linear));
}

std::shared_ptr<const LayerPart> Glu(const Sizes& s) {
  return std::make_shared<GatedUnit>(
      Activation::kSilu, GatedUnit::Tensors{Tensor(s.inner, s.hidden, s.type),
                                            Tensor(s.inner, s.hidden, s.type),
                                            Tensor(s.hidden, s.inner, s.type)});
}

ModelDefinition Model(const Sizes& s,
                      std::vector<std::shared_ptr<const LayerPart>> mixers) {
  ModelDefinition model;
  model.vocab_size = s.vocab;
  model.hidden_size = s.hidden;
  model.intermediate_size = s.inner;
  model.embedding = model.head = Tensor(s.vocab, s.hidden, s.type);
  for (auto& mixer : mixers) {
    LayerDefinition layer;
    layer.token_norm = layer.channel_norm = Rms();
    layer.mixer = std::move(mixer);
    layer.feed_forward = Glu(s);
    model.layers.push_back(std::move(layer));
  }
  model.final_norm = Rms();
  return model;
}

Device Hopper() {
  Device device;
  device.gpu = device.hopper = true;
  device.multiprocessors = 132;
  device.pages = DType::kBFloat16;
  return device;
}

StepForm Decode(int64_t rows) { return {.decode = true, .rows = rows}; }

// What a launch is, in short: its form if it is fused, else the operation's
// name, with r and w where it reads and writes rounded values.
std::vector<std::string> Shorts(const Program& program,
                                const std::vector<Launch>& launches) {
  std::vector<std::string> shorts;
  for (const Launch& launch : launches) {
    std::string text;
    switch (launch.form) {
      case Form::kOne:
        text = NameOf(program.operations[launch.first]);
        break;
      case Form::kNormed:
        text = "normed";
        break;
      case Form::kGatedUnit:
        text = "unit";
        break;
      case Form::kChain:
        text = "chain" + std::to_string(launch.count);
        break;
    }
    if (launch.reads_rounded) text += " r";
    if (launch.writes_rounded) text += " w";
    if (launch.fuses_norm) text += " n";
    shorts.push_back(text);
  }
  return shorts;
}

std::vector<std::string> Launches(const ModelDefinition& model,
                                  const Device& device, const StepForm& form) {
  const Program program = Emit(model);
  return Shorts(program, PlanLaunches(program, Lower(program, device), form));
}

void ExpectEachOnce(const Program& program,
                    const std::vector<Launch>& launches) {
  int32_t next = 0;
  for (const Launch& launch : launches) {
    EXPECT_EQ(launch.first, next);
    EXPECT_GE(launch.count, 1);
    next += launch.count;
  }
  EXPECT_EQ(next, static_cast<int32_t>(program.operations.size()));
}

TEST(PlanTest, EachOperationOnceInOrderInEveryForm) {
  for (const int64_t hidden : {64, 96, 640, 1664, 4096}) {
    for (const int64_t inner : {1, 100, 2048, 4437}) {
      for (const DType type :
           {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        Sizes s;
        s.hidden = hidden;
        s.inner = inner;
        s.type = type;
        const Program program = Emit(Model(
            s, {Tpa(s), Linear(s, true), Linear(s, false), Tpa(s), Tpa(s)}));
        Device older = Hopper();
        older.hopper = false;
        for (const Device& device : {Device(), Hopper(), older}) {
          const Plan plan = Lower(program, device);
          for (const bool all_steps : {false, true}) {
            ExpectEachOnce(
                program, PlanLaunches(program, plan, {.all_steps = all_steps}));
          }
          for (int64_t rows = 1; rows <= 512; rows *= 2) {
            ExpectEachOnce(program, PlanLaunches(program, plan, Decode(rows)));
          }
        }
      }
    }
  }
}

TEST(PlanTest, TheCpuRunsEachOperationByItself) {
  const Sizes s;
  EXPECT_THAT(Launches(Model(s, {Tpa(s)}), {}, Decode(1)),
              ElementsAre("embed", "norm", "project", "tpa", "project", "norm",
                          "project", "gate", "project", "head"));
}

TEST(PlanTest, OneRowChainsTheProductsBetweenTwoAttentions) {
  const Sizes s;
  const Program program = Emit(Model(s, {Tpa(s), Tpa(s)}));
  const Plan plan = Lower(program, Hopper());
  const std::vector<Launch> launches = PlanLaunches(program, plan, Decode(1));
  EXPECT_THAT(Shorts(program, launches),
              ElementsAre("embed", "normed n", "tpa w", "chain7 r", "tpa w",
                          "chain5 r", "head n"));
  // The chain's blocks are told of the attention before them, whose prefetch
  // is of the product after the first.
  EXPECT_EQ(launches[3].mixed_by, launches[2].first);
  const auto& up =
      std::get<ProjectOp>(program.operations[launches[3].first + 2]);
  EXPECT_EQ(launches[2].prefetch, up.matrix);
  // Without the workspace that one executor of a process has.
  EXPECT_THAT(
      Shorts(program,
             PlanLaunches(program, plan,
                          {.decode = true, .rows = 1, .chains = false})),
      ElementsAre("embed", "normed n", "tpa w", "project r", "unit n",
                  "normed n", "tpa w", "project r", "unit n", "head n"));
}

TEST(PlanTest, FewRowsChainWithTheNormOfTheirOwnLaunch) {
  const Sizes s;
  for (const int64_t rows : {2, 4}) {
    EXPECT_THAT(Launches(Model(s, {Tpa(s), Tpa(s)}), Hopper(), Decode(rows)),
                ElementsAre("embed", "norm w", "project r", "tpa w", "chain7 r",
                            "tpa w", "chain5 r", "head"));
  }
}

TEST(PlanTest, MoreRowsRoundAndFuseTheGate) {
  const Sizes s;
  const Program program = Emit(Model(s, {Tpa(s)}));
  const Plan plan = Lower(program, Hopper());
  for (const int64_t rows : {8, 64, 128}) {
    const std::vector<Launch> launches =
        PlanLaunches(program, plan, Decode(rows));
    EXPECT_THAT(Shorts(program, launches),
                ElementsAre("embed", "norm w", "project r", "tpa w",
                            "project r", "unit", "head"));
    const auto& out =
        std::get<ProjectOp>(program.operations[launches[4].first]);
    EXPECT_EQ(launches[3].prefetch, rows <= 64 ? out.matrix : MatrixId());
  }
  // Prompts: this gate is faster fused for every row.
  EXPECT_THAT(Launches(Model(s, {Tpa(s)}), Hopper(), {}),
              ElementsAre("embed", "norm w", "project r", "tpa w", "project r",
                          "unit", "head"));
}

TEST(PlanTest, PromptsFuseTheGateOnlyIfTheyAlwaysDo) {
  Sizes s;
  s.inner = 1024;  // the matrix of gate and features is in parts
  const ModelDefinition model = Model(s, {Tpa(s)});
  EXPECT_THAT(
      Launches(model, Hopper(), {}),
      ElementsAre("embed", "norm w", "project r", "tpa w", "project r",
                  "norm w", "project r", "gate w", "project r", "head"));
  EXPECT_THAT(Launches(model, Hopper(), {.all_steps = true}),
              ElementsAre("embed", "norm w", "project r", "tpa w", "project r",
                          "unit", "head"));
}

TEST(PlanTest, PagesOfAnotherTypeThanTheWeightsAreNotRounded) {
  const Sizes s;
  Device device = Hopper();
  device.pages = DType::kFloat16;
  EXPECT_THAT(
      Launches(Model(s, {Tpa(s)}), device, Decode(1)),
      ElementsAre("embed", "normed n", "tpa", "project", "unit n", "head n"));
  // The prefill kernel writes bfloat16, whatever the pages hold.
  EXPECT_THAT(Launches(Model(s, {Tpa(s)}), device, {}),
              ElementsAre("embed", "norm w", "project r", "tpa w", "project r",
                          "unit", "head"));
}

TEST(PlanTest, LinearLayersRoundWhatTheirLastProductReads) {
  Sizes s;
  s.hidden = 2048;
  EXPECT_THAT(
      Launches(Model(s, {Linear(s, true)}), Hopper(), Decode(8)),
      ElementsAre("embed", "norm w", "project r", "project", "linear attention",
                  "gated norm w", "project r", "unit", "head"));
  // Its output is not attention's: nothing is known of its blocks.
  const Program program = Emit(Model(s, {Linear(s, true), Linear(s, true)}));
  const std::vector<Launch> launches =
      PlanLaunches(program, Lower(program, Hopper()), Decode(1));
  int chains = 0;
  for (const Launch& launch : launches) {
    if (launch.form != Form::kChain) continue;
    ++chains;
    EXPECT_EQ(launch.mixed_by, -1);
  }
  EXPECT_EQ(chains, 2);
  // Without a gate, one row's norm is part of the product.
  EXPECT_THAT(Launches(Model(s, {Linear(s, false)}), Hopper(), Decode(1)),
              ElementsAre("embed", "normed n", "linear attention", "normed n",
                          "unit n", "head n"));
}

TEST(PlanTest, WideTypesAndOlderGpusFuseNothing) {
  Sizes s;
  s.type = DType::kFloat32;
  const std::vector<std::string> plain = {"embed",   "norm", "project", "tpa",
                                          "project", "norm", "project", "gate",
                                          "project", "head"};
  EXPECT_EQ(Launches(Model(s, {Tpa(s)}), Hopper(), Decode(1)), plain);
  s.type = DType::kBFloat16;
  Device older = Hopper();
  older.hopper = false;
  EXPECT_THAT(
      Launches(Model(s, {Tpa(s)}), older, Decode(1)),
      ElementsAre("embed", "norm w", "project r", "tpa w", "project r",
                  "norm w", "project r", "gate w", "project r", "head"));
  // One matrix of another type.
  ModelDefinition mixed = Model(s, {Tpa(s)});
  mixed.head.dtype = DType::kFloat32;
  EXPECT_THAT(Launches(mixed, Hopper(), Decode(8)),
              ElementsAre("embed", "norm", "project", "tpa", "project", "unit",
                          "head"));
}

TEST(PlanTest, ALayerNormIsNeitherRoundedNorFused) {
  const Sizes s;
  ModelDefinition model = Model(s, {Tpa(s)});
  model.layers[0].token_norm.kind = NormKind::kLayer;
  model.layers[0].channel_norm.kind = NormKind::kLayer;
  EXPECT_THAT(Launches(model, Hopper(), Decode(1)),
              ElementsAre("embed", "norm", "project", "tpa w", "project r",
                          "unit", "head n"));
}

TEST(PlanTest, OddWidthsAreNotRounded) {
  Sizes s;
  s.hidden = 96;
  s.heads = 3;
  const std::vector<std::string> launches =
      Launches(Model(s, {Tpa(s)}), Hopper(), Decode(8));
  EXPECT_EQ(launches[1], "norm");   // 96 columns
  EXPECT_EQ(launches[3], "tpa w");  // 192
}

// A product writes float32 where a norm had written 16-bit values.
TEST(PlanTest, WhatWasRoundedMayBeWrittenAgain) {
  ProgramBuilder builder(64, 1024);
  const ValueId residual = builder.AddLasting("residual", 1024);
  builder.BeginRegion("layer 0");
  const ValueId value = builder.AddValue("value", 1024);
  const MatrixId square = builder.AddMatrix({Tensor(1024, 1024)});
  builder.Add(NormOp{{residual}, {}, {value}});
  builder.Add(ProjectOp{{value}, square, {residual}, true});
  builder.Add(ProjectOp{{residual}, square, {value}, false});
  builder.Add(ProjectOp{{value}, square, {residual}, true});
  const Program program = builder.Build();
  EXPECT_THAT(Shorts(program, PlanLaunches(program, Lower(program, Hopper()),
                                           Decode(8))),
              ElementsAre("norm w", "project r", "project", "project"));
}

TEST(PlanTest, WhatOthersReadIsNotRounded) {
  Sizes s;
  s.hidden = 1024;
  ModelDefinition model = Model(s, {Tpa(s)});
  TpeDefinition tpe;
  tpe.num_heads = 16;
  tpe.decay.assign(16, 0.5f);
  tpe.gain.assign(16, 1.0f);
  tpe.norm = Rms();
  tpe.out = Tensor(1024, 1024);
  model.tpe = std::make_shared<TpeLayer>(std::move(tpe));
  const std::vector<std::string> launches =
      Launches(model, Hopper(), Decode(8));
  const std::vector<std::string> first(launches.begin(), launches.begin() + 8);
  // The embedding is the values; the norm works in place.
  EXPECT_THAT(first,
              ElementsAre("embed", "fill", "fill", "fill", "linear attention",
                          "norm", "project", "norm w"));
}

TEST(PlanTest, RegionsShareABufferAndPiecesArePadded) {
  Sizes s;
  s.hidden = 100;
  s.inner = 70;
  s.heads = 2;
  const Program program = Emit(Model(s, {Tpa(s), Linear(s, true)}));
  const Plan cpu = Lower(program, {});
  const Plan gpu = Lower(program, Hopper());
  const auto place = [&](const Plan& plan, const std::string& name) {
    for (size_t i = 0; i < program.values.size(); ++i) {
      if (program.values[i].name == name) return plan.values[i];
    }
    ADD_FAILURE() << name;
    return Plan::Place{};
  };
  EXPECT_THAT(cpu.buffers, testing::SizeIs(3));
  EXPECT_EQ(cpu.buffers[0], 100);
  EXPECT_EQ(gpu.buffers[0], 128);
  EXPECT_EQ(place(cpu, "gates").cols, 140);
  EXPECT_EQ(place(gpu, "gates").cols, 256);
  EXPECT_EQ(place(cpu, "gated").first, 140);
  EXPECT_EQ(place(gpu, "gated").first, 256);
  EXPECT_EQ(place(gpu, "gated").cols, 128);
  // Each region begins at the first column again.
  EXPECT_EQ(place(gpu, "factors").first, 0);
  EXPECT_EQ(place(gpu, "inputs").first, 0);
  EXPECT_EQ(place(gpu, "normed").first, 0);
  // A value over another has its memory, and only as many columns as it needs.
  for (const Plan& plan : {cpu, gpu}) {
    int32_t over = -1;
    for (size_t i = 0; i < program.values.size(); ++i) {
      if (program.values[i].over.value >= 0) over = static_cast<int32_t>(i);
    }
    ASSERT_GE(over, 0);
    const Plan::Place under = plan.values[program.values[over].over.value];
    EXPECT_EQ(plan.values[over].buffer, under.buffer);
    EXPECT_EQ(plan.values[over].first, under.first);
  }
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Plan::Place p = gpu.values[i];
    EXPECT_EQ(p.first % 64, 0);
    EXPECT_LE(p.first + p.cols, gpu.buffers[p.buffer]);
  }
}

TEST(PlanTest, BytesAreThoseThatAreHeld) {
  Sizes s;
  s.hidden = 100;
  s.inner = 70;
  s.heads = 2;
  s.vocab = 50;
  const Program program = Emit(Model(s, {Tpa(s)}));
  const Plan gpu = Lower(program, Hopper());
  // Factors [1064, 100], out [100, 128], gate and features [2 · 128, 100], down
  // [100, 70], head [50, 100]: outputs in steps of 16, inputs of 64; and the
  // table as it is.
  const int64_t factors = 6 * (2 + 64) + 2 * 2 * (2 + 64);
  EXPECT_EQ(gpu.weight_bytes,
            2 * ((factors + 15) / 16 * 16 * 128 + 112 * 128 + 256 * 128 +
                 112 * 128 + 64 * 128 + 50 * 100));
  EXPECT_EQ(gpu.matrix_type, DType::kBFloat16);
  EXPECT_EQ(gpu.page_bytes,
            2 * TpaPageLayout({2, 64, 64, 6, 2}, TpaPageOrder::kOctets)
                    .page_elements);
  EXPECT_EQ(gpu.slot_bytes, 0);
  // The residual, the normalised rows, and the attention's region: its factors
  // and its output.
  EXPECT_EQ(gpu.row_bytes(),
            4 * (128 + 128 + (factors + 63) / 64 * 64 + 2 * 64));
  const Plan cpu = Lower(program, {});
  EXPECT_EQ(cpu.page_bytes, 4 * TpaPageLayout({2, 64, 64, 6, 2}).page_elements);
  // In float32 on demand, and then whatever is looked up, too, on a GPU.
  Device wide = Hopper();
  wide.weights = DType::kFloat32;
  EXPECT_EQ(Lower(program, wide).matrix_type, DType::kFloat32);
  EXPECT_GT(Lower(program, wide).weight_bytes, 15 * gpu.weight_bytes / 10);
}

TEST(PlanTest, ATiedHeadIsHeldOnceOnTheCpu) {
  Sizes s;
  s.vocab = 50;
  ModelDefinition model = Model(s, {Tpa(s)});
  const std::vector<uint16_t> rows(50 * s.hidden), others(rows.size());
  model.embedding.data = rows.data();
  model.head.data = others.data();
  ASSERT_EQ(model.head.shape, model.embedding.shape);
  const auto bytes = [&](const Device& device) {
    return Lower(Emit(model), device).weight_bytes;
  };
  const int64_t apart = bytes({});
  const int64_t on_gpu = bytes(Hopper());
  EXPECT_EQ(Lower(Emit(model), {}).tables[0].matrix, -1);
  model.head.data = rows.data();
  EXPECT_EQ(bytes({}), apart - 2 * 50 * s.hidden);
  EXPECT_EQ(bytes(Hopper()), on_gpu);
  const Program tied = Emit(model);
  const int32_t matrix = Lower(tied, {}).tables[0].matrix;
  ASSERT_GE(matrix, 0);
  EXPECT_EQ(tied.matrices[matrix].parts[0].tensor.data, rows.data());
}

// Where prompts are computed in chunks, generated tokens write states seldom,
// and keep the tokens since in rings of the slot.
TEST(PlanTest, ASlotHasRingsWhereStatesAreWrittenSeldom) {
  Sizes s;
  s.hidden = 128;  // two heads of 64
  const Program program = Emit(Model(s, {Linear(s, false), Linear(s, true)}));
  const int64_t state = 2 * 64 * 64;
  const int64_t ring = 2 * 8 * (64 + 64);
  const auto elements = [&](const Device& device) {
    std::vector<int64_t> of_states;
    for (const Plan::State& part : Lower(program, device).states) {
      of_states.push_back(part.elements);
    }
    return of_states;
  };
  EXPECT_THAT(elements(Hopper()), ElementsAre(state, ring, state, ring));
  EXPECT_EQ(Lower(program, Hopper()).slot_bytes, 4 * 2 * (state + ring));
  EXPECT_THAT(elements({}), ElementsAre(state, 0, state, 0));
  Device older = Hopper();
  older.hopper = false;
  EXPECT_THAT(elements(older), ElementsAre(state, 0, state, 0));
  Device wide = Hopper();
  wide.weights = DType::kFloat32;
  EXPECT_THAT(elements(wide), ElementsAre(state, 0, state, 0));
  EXPECT_EQ(Lower(program, wide).slot_bytes, 4 * 2 * state);
}

TEST(PlanTest, PrintsEqualLayersOnce) {
  const Sizes s;
  const Program program = Emit(Model(s, {Tpa(s), Tpa(s), Tpa(s)}));
  const std::string text =
      PrintPlan(program, Lower(program, Hopper()), Decode(32));
  EXPECT_THAT(text, HasSubstr("layer 0 to layer 2:"));
  EXPECT_THAT(text, HasSubstr("project residual[1664] += mixed[1664] x [1664, "
                              "1664] bfloat16, reads 16-bit values"));
  EXPECT_THAT(text, HasSubstr("gated unit:"));
  EXPECT_THAT(text, HasSubstr("head residual[1664] x [50304, 1664]"));
}

}  // namespace
}  // namespace recurve
