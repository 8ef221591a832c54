// Executors, plans and workspaces behind polyhead_c.h.
#include <memory>

#include "capi/convert.hpp"
#include "capi/handles.hpp"

using namespace polyhead::capi;

namespace {

/// A caller's pool as an Executor.
class CallbackExecutor final : public polyhead::Executor {
 public:
  explicit CallbackExecutor(const polyhead_executor_callbacks& callbacks) : callbacks_(callbacks) {}
  int concurrency() const override { return callbacks_.concurrency; }
  void run(int count, polyhead::Task task) override {
    const int code = callbacks_.run(callbacks_.context, count, task.call, task.context);
    if (code != 0) throw CallbackFailed("an executor's run", code);
  }

 private:
  polyhead_executor_callbacks callbacks_;
};

}  // namespace

polyhead_status polyhead_executor_create(const polyhead_executor_callbacks* callbacks,
                                         polyhead_executor** executor) {
  constexpr const char* kCall = "polyhead_executor_create";
  return guarded(kCall, [&] {
    const polyhead_executor_callbacks from = read_struct(kCall, "callbacks", callbacks);
    need(kCall, "executor", executor);
    need(kCall, "callbacks.run", from.run);
    if (from.concurrency < 1) {
      refuse("%s: callbacks.concurrency (%d) is less than 1", kCall, from.concurrency);
    }
    *executor = new polyhead_executor(std::make_unique<CallbackExecutor>(from));
  });
}

polyhead_status polyhead_executor_create_pool(int32_t threads, polyhead_executor** executor) {
  constexpr const char* kCall = "polyhead_executor_create_pool";
  return guarded(kCall, [&] {
    need(kCall, "executor", executor);
    *executor = new polyhead_executor(std::make_unique<polyhead::ThreadPool>(threads));
  });
}

void polyhead_executor_destroy(polyhead_executor* executor) { delete executor; }

polyhead_status polyhead_plan_create(const polyhead_limits* limits, const polyhead_options* options,
                                     polyhead_plan** plan) {
  constexpr const char* kCall = "polyhead_plan_create";
  return guarded(kCall, [&] {
    const polyhead::Limits to = to_limits(kCall, limits);
    need(kCall, "plan", plan);
    *plan = new polyhead_plan{polyhead::Plan(to, to_options(kCall, options))};
  });
}

void polyhead_plan_destroy(polyhead_plan* plan) { delete plan; }

polyhead_status polyhead_workspace_create(const polyhead_plan* plan,
                                          polyhead_workspace** workspace) {
  constexpr const char* kCall = "polyhead_workspace_create";
  return guarded(kCall, [&] {
    need(kCall, "plan", plan);
    need(kCall, "workspace", workspace);
    *workspace = new polyhead_workspace{plan->plan.make_workspace()};
  });
}

void polyhead_workspace_destroy(polyhead_workspace* workspace) { delete workspace; }

polyhead_status polyhead_workspace_bytes(const polyhead_workspace* workspace, size_t* bytes) {
  constexpr const char* kCall = "polyhead_workspace_bytes";
  return guarded(kCall, [&] {
    need(kCall, "workspace", workspace);
    *need(kCall, "bytes", bytes) = workspace->workspace.bytes();
  });
}

polyhead_status polyhead_plan_run(const polyhead_plan* plan,
                                  const polyhead_attention_arguments* arguments,
                                  polyhead_workspace* workspace) {
  constexpr const char* kCall = "polyhead_plan_run";
  return guarded(kCall, [&] {
    need(kCall, "plan", plan);
    need(kCall, "workspace", workspace);
    const AttentionCall call(kCall, arguments);
    plan->plan.run(call.arguments(), workspace->workspace);
  });
}

polyhead_status polyhead_plan_describe(const polyhead_plan* plan,
                                       const polyhead_attention_arguments* arguments, char* text,
                                       size_t text_bytes, size_t* needed) {
  constexpr const char* kCall = "polyhead_plan_describe";
  return guarded(kCall, [&] {
    need(kCall, "plan", plan);
    if (arguments == nullptr) {
      copy_text(kCall, plan->plan.describe(), text, text_bytes, needed);
      return;
    }
    const AttentionCall call(kCall, arguments);
    copy_text(kCall, plan->plan.describe(call.arguments()), text, text_bytes, needed);
  });
}
