// image_sum.cuh - the sum of one value an image over a batch, for threads that walk the images one by one
//
// Repeats    bitwise: the order of the sum is fixed
// Idea       each term is rounded to the spacing of the sum so far, and where terms are alike, ever the same way: the
//            error of a long sum grows with its length. In groups no sum grows long, and it costs next to nothing

const int IMAGES_OF_A_GROUP = 256;

// value(0) + ... + value(N - 1)
template <typename Value>
__device__ __forceinline__ float image_sum(int N, Value value)
{
    float sum = 0.0f;
    for (int first = 0; first < N; first += IMAGES_OF_A_GROUP) {
        const int end = N - first < IMAGES_OF_A_GROUP ? N : first + IMAGES_OF_A_GROUP;
        float part = 0.0f;
        for (int n = first; n < end; ++n) part += value(n);
        sum += part;
    }
    return sum;
}
