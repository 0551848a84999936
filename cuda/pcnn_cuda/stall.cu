// stall.cu - keeps the GPU busy for a while, so that the host can queue what follows before any of it begins
//
// Computes   nothing
// Shapes     none
// Launch     launch.ONE_THREAD
// Traffic    none; it waits for the multiprocessor's clock
// Limits     cycle_count < 2^31: about a second
// Repeats    it has no result
// Reference  none: it has no result
// Idea       the blocking kernel of NVIDIA's nvbench: without it an event pair around a short kernel measures how long
//            the host took to launch it

extern "C" __global__ void stall_wait(int cycle_count)
{
    const long long start = clock64();
    while (clock64() - start < cycle_count) {}
}
