// pooling.cuh - window constants and the windows over a cell, shared by avgpool2d.cu and maxpool2d.cu

#if !defined(SIZE_H) || !defined(SIZE_W) || !defined(STRIDE_H) || !defined(STRIDE_W)
#error "compile with -DSIZE_H= -DSIZE_W= -DSTRIDE_H= -DSTRIDE_W=; the host takes them from PoolingSpec"
#endif

// Windows first .. end-1 along one axis.
struct Windows {
    int first;
    int end;
};

// The windows of `size` cells, `stride` apart, `count` in all, that contain `cell`.
__device__ __forceinline__ Windows windows_over(int cell, int size, int stride, int count)
{
    Windows found;
    found.first = cell < size ? 0 : (cell - size) / stride + 1;
    found.end = min(cell / stride + 1, count);
    return found;
}
