#ifndef RECURVE_KERNELS_COMMON_HOST_DEVICE_H_
#define RECURVE_KERNELS_COMMON_HOST_DEVICE_H_

// Marks code shared by host and device; empty without CUDA.
#ifdef __CUDACC__
#define RECURVE_HOST_DEVICE __host__ __device__
#else
#define RECURVE_HOST_DEVICE
#endif

#endif  // RECURVE_KERNELS_COMMON_HOST_DEVICE_H_
