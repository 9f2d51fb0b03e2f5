// Launches kernels from inside a computation of XLA, without Python.
//
// Compiled behind XLA's own `xla/ffi/api/c_api.h`, as the installed jaxlib has it. XLA calls a
// handler with the buffers of one launch and with what was known when the call was traced:
//
//   kernel   the name under which the kernel was registered,
//   words    the structure that the kernel takes, as 64-bit words (gs/arguments.h),
//   slots    which of the words are addresses: of the outputs first, then of the inputs,
//
// on the CPU `threads`, and on a GPU `blocks`, `block_size`, and `reduce_blocks`, the number of
// sums that a second kernel forms (0 for none) in blocks of `reduce_block_size`.

namespace {

struct Kernel {
  const char* name;
  void* functions[2];
  Kernel* next;
  void* ready_in;  // on a GPU: a context into which the code has been loaded
};

// Kernels are only ever added, and never die: who reads the list needs no lock.
Kernel* kernels = nullptr;

Kernel* find_kernel(const char* name, size_t length) {
  Kernel* kernel = __atomic_load_n(&kernels, __ATOMIC_ACQUIRE);
  while (kernel != nullptr && !(__builtin_strlen(kernel->name) == length &&
                                __builtin_memcmp(kernel->name, name, length) == 0)) {
    kernel = kernel->next;
  }
  return kernel;
}

XLA_FFI_Error* error(const XLA_FFI_CallFrame* call, const char* message) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message;
  args.errc = XLA_FFI_Error_Code_INTERNAL;
  return call->api->XLA_FFI_Error_Create(&args);
}

// XLA also asks what a handler is made for.
bool answers_question(XLA_FFI_CallFrame* call, XLA_FFI_Handler_Traits traits) {
  for (auto* extension = call->extension_start; extension != nullptr; extension = extension->next) {
    if (extension->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = traits;
    return true;
  }
  return false;
}

const void* attribute(const XLA_FFI_Attrs& attributes, const char* name) {
  const size_t length = __builtin_strlen(name);
  for (int64_t i = 0; i < attributes.size; ++i) {
    const XLA_FFI_ByteSpan& found = *attributes.names[i];
    if (found.len == length && __builtin_memcmp(found.ptr, name, length) == 0) {
      return attributes.attrs[i];
    }
  }
  __builtin_trap();  // the caller, gradsolve/_fused/launch.py, passes all of them
}

int64_t number(const XLA_FFI_Attrs& attributes, const char* name) {
  const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attribute(attributes, name));
  return *static_cast<const int64_t*>(scalar->value);
}

const XLA_FFI_Array& list(const XLA_FFI_Attrs& attributes, const char* name) {
  return *static_cast<const XLA_FFI_Array*>(attribute(attributes, name));
}

Kernel* kernel_of(const XLA_FFI_Attrs& attributes) {
  const auto* name = static_cast<const XLA_FFI_ByteSpan*>(attribute(attributes, "kernel"));
  return find_kernel(name->ptr, name->len);
}

// Fills in the addresses.
void complete(const XLA_FFI_CallFrame* call, const XLA_FFI_Array& known, int64_t* words) {
  const int64_t* slot = static_cast<const int64_t*>(list(call->attrs, "slots").data);
  __builtin_memcpy(words, known.data, known.size * sizeof(int64_t));
  for (int64_t i = 0; i < call->rets.size; ++i) {
    words[*slot++] =
        reinterpret_cast<int64_t>(static_cast<const XLA_FFI_Buffer*>(call->rets.rets[i])->data);
  }
  for (int64_t i = 0; i < call->args.size; ++i) {
    words[*slot++] =
        reinterpret_cast<int64_t>(static_cast<const XLA_FFI_Buffer*>(call->args.args[i])->data);
  }
}

constexpr const char* kUnknown =
    "This computation was compiled by another process, which had made its kernel. Trace it here: "
    "call `gradsolve.solve` in this process.";

using OnHost = void(const void* arguments, int64_t threads);

// Functions of the CUDA driver, as cuda.h declares them.
struct Driver {
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                void**, void**);
  int (*function_of_kernel)(void**, void*);
  int (*context_of_stream)(void*, void**);
  int (*current_context)(void**);
  int (*push_context)(void*);
  int (*pop_context)(void**);
  int (*describe)(int, const char**);
};
Driver driver;

// Code is loaded into a context when it is first used. Asked for here, that does not happen in the
// launch itself, which XLA may be recording.
int make_ready(Kernel& kernel, void* context) {
  if (__atomic_load_n(&kernel.ready_in, __ATOMIC_RELAXED) == context) return 0;
  for (void* function : kernel.functions) {
    if (function == nullptr) continue;
    void* loaded;
    if (const int code = driver.function_of_kernel(&loaded, function)) return code;
  }
  __atomic_store_n(&kernel.ready_in, context, __ATOMIC_RELAXED);
  return 0;
}

int launch_on_gpu(const XLA_FFI_Attrs& attributes, const Kernel& kernel, void* stream,
                  int64_t* words) {
  int64_t blocks = number(attributes, "blocks");
  void* arguments[] = {words, &blocks};
  const auto block_size = static_cast<unsigned>(number(attributes, "block_size"));
  const auto reduce_blocks = static_cast<unsigned>(number(attributes, "reduce_blocks"));
  const int code = driver.launch(kernel.functions[0], static_cast<unsigned>(blocks), 1, 1,
                                 block_size, 1, 1, 0, stream, arguments, nullptr);
  if (code != 0 || reduce_blocks == 0) return code;
  const auto reduce_size = static_cast<unsigned>(number(attributes, "reduce_block_size"));
  return driver.launch(kernel.functions[1], reduce_blocks, 1, 1, reduce_size, 1, 1, 0, stream,
                       arguments, nullptr);
}

}  // namespace

#define GS_EXPORT extern "C" __attribute__((visibility("default")))

// The caller holds a lock and does not add a name twice.
GS_EXPORT void gs_add_kernel(const char* name, void* function, void* second) {
  Kernel* added = static_cast<Kernel*>(__builtin_malloc(sizeof(Kernel)));
  *added = {__builtin_strdup(name), {function, second}, kernels, nullptr};
  __atomic_store_n(&kernels, added, __ATOMIC_RELEASE);
}

// In the order of `Driver`.
GS_EXPORT void gs_set_driver(void* const* functions) {
  __builtin_memcpy(&driver, functions, sizeof(driver));
}

GS_EXPORT XLA_FFI_Error* gs_launch_on_host(XLA_FFI_CallFrame* call) {
  if (answers_question(call, 0)) return nullptr;
  const Kernel* kernel = kernel_of(call->attrs);
  if (kernel == nullptr) return error(call, kUnknown);
  const XLA_FFI_Array& known = list(call->attrs, "words");
  int64_t* words = static_cast<int64_t*>(__builtin_alloca(known.size * sizeof(int64_t)));
  complete(call, known, words);
  reinterpret_cast<OnHost*>(kernel->functions[0])(words, number(call->attrs, "threads"));
  return nullptr;
}

// Launching does nothing but put work on a stream, so that XLA may record it in a CUDA graph.
GS_EXPORT XLA_FFI_Error* gs_launch_on_gpu(XLA_FFI_CallFrame* call) {
  if (answers_question(call, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE)) return nullptr;
  Kernel* kernel = kernel_of(call->attrs);
  if (kernel == nullptr) return error(call, kUnknown);
  XLA_FFI_Stream_Get_Args where = {};
  where.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE;
  where.ctx = call->ctx;
  if (XLA_FFI_Error* failed = call->api->XLA_FFI_Stream_Get(&where)) return failed;
  const XLA_FFI_Array& known = list(call->attrs, "words");
  int64_t* words = static_cast<int64_t*>(__builtin_alloca(known.size * sizeof(int64_t)));
  complete(call, known, words);

  // The launch goes to the context that is current, which must be the stream's.
  void *owner = nullptr, *current = nullptr, *popped;
  int code = driver.context_of_stream(where.stream, &owner);
  if (code == 0) code = driver.current_context(&current);
  const bool switched = code == 0 && owner != current;
  if (switched) code = driver.push_context(owner);
  if (code == 0) {
    code = make_ready(*kernel, owner);
    if (code == 0) code = launch_on_gpu(call->attrs, *kernel, where.stream, words);
    if (switched) driver.pop_context(&popped);
  }
  if (code == 0) return nullptr;
  const char* reason = nullptr;
  driver.describe(code, &reason);
  return error(call, reason != nullptr ? reason : "The CUDA driver refused a launch.");
}
