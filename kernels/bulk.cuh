// Barriers in shared memory and the copies that they count, from sm_80 on; bulk copies and clusters, from sm_90 on
// (instructions.cuh says what EMULATED is).
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 800 && !defined(EMULATED)

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// 16 or 4 bytes from global to shared memory.
__device__ __forceinline__ void copy_piece(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_word(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(to), "l"(from) : "memory");
}
// One arrival of each thread, once all its copies are there.
__device__ __forceinline__ void barrier_arrive_copied(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
#define TRY_WAIT "mbarrier.try_wait"
#else
#define TRY_WAIT "mbarrier.test_wait"
#endif
    asm volatile("{\n.reg .pred done;\nwait:\n" TRY_WAIT ".parity.shared.b64 done,[%0],%1;\n"
                 "@!done bra wait;\n}" ::"r"(barrier), "r"(parity) : "memory");
#undef TRY_WAIT
}

#if __CUDA_ARCH__ >= 900

// What a thread wrote to shared memory, barriers included, or what a barrier has shown it there, becomes
// visible to bulk copies and tensor cores.
__device__ __forceinline__ void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// One arrival, which also announces bytes that copies will bring.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _,[%0];" ::"r"(barrier) : "memory");
}

// `bytes` (a multiple of 16) from global to shared memory; `barrier` counts them.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// The same of what is read once a step.
__device__ __forceinline__ void bulk_copy_once(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0],[%1],%2,[%3],%4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(EVICT_FIRST) : "memory");
}
// `bytes` (a multiple of 16) of what is written once a step, from shared to global memory, and the wait until they have been read. Both by
// the same thread, before its block ends.
__device__ __forceinline__ void bulk_store_once(void* to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0],[%1],%2,%3;\ncp.async.bulk.commit_group;"
                 ::"l"(to), "r"(from), "r"(bytes), "l"(EVICT_FIRST) : "memory");
}
__device__ __forceinline__ void bulk_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Asks for `bytes` (a multiple of 16) to be brought into the L2 cache.
__device__ __forceinline__ void bulk_prefetch(const void* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0],%1;" ::"l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same for what was written to shared memory alone: one warp's fence is enough for the block, and no thread waits until its stores
// elsewhere are seen everywhere.
__device__ __forceinline__ void cluster_sync_shared() {
    __syncthreads();
    if (threadIdx.x < 32) asm volatile("fence.acq_rel.cluster;" ::: "memory");
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Waits for the other blocks, but not for what they have written. What was read from them must be in use already.
__device__ __forceinline__ void cluster_join() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// In two halves, for what needs the other blocks to have begun, and their barriers to be there, which `fence_barriers` promises.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// A number to another block's shared memory, where a barrier counts its bytes.
__device__ __forceinline__ void store_remote(uint32_t remote, float v, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0],%1,[%2];" ::"r"(remote), "f"(v), "r"(barrier) : "memory");
}
// An address of shared memory, in block `rank` of the cluster, and a number there.
__device__ __forceinline__ uint32_t remote_address(uint32_t address, uint32_t rank) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
__device__ __forceinline__ float load_remote(uint32_t remote) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0,[%1];" : "=f"(v) : "r"(remote));
    return v;
}

#else

// A cluster of one block.
__device__ __forceinline__ void cluster_sync() { __syncthreads(); }
__device__ __forceinline__ void cluster_sync_shared() { __syncthreads(); }
__device__ __forceinline__ void cluster_join() { __syncthreads(); }
__device__ __forceinline__ uint32_t remote_address(uint32_t address, uint32_t rank) { return address; }
__device__ __forceinline__ float load_remote(uint32_t address) { return load_shared(address); }

#endif
#endif
