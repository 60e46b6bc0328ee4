from libc.stdint cimport int32_t, int64_t, uint32_t

cdef extern from "model/layers.h" nogil:
    int pslib_layer_level
    int pslib_best_level()
    int pslib_occurrences(const int32_t* places, int64_t n, int64_t rows, int32_t* order, int32_t* starts)

    void pslib_bias_relu_float(float* values, const float* bias, int64_t n, int64_t m)
    void pslib_bias_relu_double(double* values, const double* bias, int64_t n, int64_t m)
    void pslib_relu_gradient_float(
        const float* gradient, const float* values, float* masked, float* total, int64_t n, int64_t m)
    void pslib_relu_gradient_double(
        const double* gradient, const double* values, double* masked, double* total, int64_t n, int64_t m)
    void pslib_head_gradient_float(
        const float* gradient, const float* values, const float* weights, float* masked, float* total,
        float* weights_gradient, int64_t n, int64_t m)
    void pslib_head_gradient_double(
        const double* gradient, const double* values, const double* weights, double* masked, double* total,
        double* weights_gradient, int64_t n, int64_t m)
    void pslib_fm_float(
        const float* vectors, int64_t stride, int64_t n, int64_t fields, int64_t dim, float* totals,
        float* values)
    void pslib_fm_double(
        const double* vectors, int64_t stride, int64_t n, int64_t fields, int64_t dim, double* totals,
        double* values)
    void pslib_fm_gradient_float(
        const float* vectors, int64_t stride, const float* totals, const float* gradient, int64_t n,
        int64_t fields, int64_t dim, float* out, int64_t out_stride)
    void pslib_fm_gradient_double(
        const double* vectors, int64_t stride, const double* totals, const double* gradient, int64_t n,
        int64_t fields, int64_t dim, double* out, int64_t out_stride)
    void pslib_gather_float(
        const float* rows, int64_t row_stride, const int32_t* places, int64_t n, int64_t fields, int64_t dim,
        float* out, int64_t out_stride)
    void pslib_gather_double(
        const double* rows, int64_t row_stride, const int32_t* places, int64_t n, int64_t fields, int64_t dim,
        double* out, int64_t out_stride)
    void pslib_weigh_float(
        const float* rows, int64_t row_stride, const int32_t* places, int64_t n, int64_t fields, float* out)
    void pslib_weigh_double(
        const double* rows, int64_t row_stride, const int32_t* places, int64_t n, int64_t fields, double* out)
    ctypedef struct PslibAddends_float:
        const float* first
        int64_t stride
        int64_t step
        uint32_t fields
        const int32_t* owners
    ctypedef struct PslibAddends_double:
        const double* first
        int64_t stride
        int64_t step
        uint32_t fields
        const int32_t* owners
    void pslib_sum_rows_float(
        const int32_t* order, const int32_t* starts, int64_t first, int64_t last,
        const PslibAddends_float* addends, int64_t dim, float* out, int64_t out_stride)
    void pslib_sum_rows_double(
        const int32_t* order, const int32_t* starts, int64_t first, int64_t last,
        const PslibAddends_double* addends, int64_t dim, double* out, int64_t out_stride)
