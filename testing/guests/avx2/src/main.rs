//! Does AVX2 code work, and does the guest's processor say so?

#[cfg(target_arch = "x86_64")]
fn main() {
    if !std::arch::is_x86_feature_detected!("avx2") {
        println!("no AVX2");
        return;
    }
    // SAFETY: AVX2 was detected.
    let sum = unsafe { sum(&core::array::from_fn::<i32, 4096, _>(|n| n as i32)) };
    println!("AVX2 {sum}");
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum(numbers: &[i32; 4096]) -> i32 {
    use std::arch::x86_64::*;
    let mut total = _mm256_setzero_si256();
    for eight in numbers.chunks_exact(8) {
        let eight = _mm256_setr_epi32(eight[0], eight[1], eight[2], eight[3], eight[4], eight[5], eight[6], eight[7]);
        total = _mm256_add_epi32(total, eight);
    }
    let mut lanes = [0_i32; 8];
    // SAFETY: `lanes` is 32 writable bytes, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), total) };
    lanes.iter().sum()
}
