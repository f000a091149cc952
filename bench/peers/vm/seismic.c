/*
 * Four phases like those of a seismic survey's processing: `seismic PHASE FILE MIB`. 1 writes FILE, so many MiB of traces; 2 stacks traces and
 * writes FILE.stack; 3 filters that and writes FILE.image; 4 computes on that, and reads or writes little.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES 1024
#define FOLD 8
/* How far the last phase looks to each side, and how often. */
#define APERTURE 64
#define PASSES 360

typedef float trace[SAMPLES];

static FILE *open_file(const char *path, const char *suffix, const char *mode)
{
	char name[4096];
	FILE *file;

	snprintf(name, sizeof(name), "%s%s", path, suffix);
	file = fopen(name, mode);
	if (!file) {
		perror(name);
		exit(1);
	}
	return file;
}

static void put(const void *data, size_t bytes, FILE *file)
{
	if (fwrite(data, 1, bytes, file) != bytes) {
		perror("write");
		exit(1);
	}
}

static void finish(FILE *file)
{
	if (fclose(file) != 0) {
		perror("close");
		exit(1);
	}
}

static void generate(const char *path, long traces)
{
	FILE *file = open_file(path, "", "w");
	uint32_t state = 1;
	static trace one;

	for (long i = 0; i < traces; i++) {
		for (int t = 0; t < SAMPLES; t++) {
			state = state * 1664525u + 1013904223u;
			one[t] = (float)(state >> 8) / (1 << 24) - 0.5f + (t % 97 == 0 ? 4.0f : 0.0f);
		}
		put(one, sizeof(one), file);
	}
	finish(file);
}

static void stack(const char *path)
{
	FILE *in = open_file(path, "", "r"), *out = open_file(path, ".stack", "w");
	static trace sum, one;
	int fold = 0;

	while (fread(one, sizeof(one), 1, in) == 1) {
		for (int t = 0; t < SAMPLES; t++)
			sum[t] += one[t] / FOLD;
		if (++fold == FOLD) {
			put(sum, sizeof(sum), out);
			memset(sum, 0, sizeof(sum));
			fold = 0;
		}
	}
	finish(in);
	finish(out);
}

static void filter(const char *path)
{
	FILE *in = open_file(path, ".stack", "r"), *out = open_file(path, ".image", "w");
	static trace one, smooth;

	while (fread(one, sizeof(one), 1, in) == 1) {
		for (int t = 0; t < SAMPLES; t++) {
			smooth[t] = 0;
			for (int k = -16; k <= 16; k++)
				if (t + k >= 0 && t + k < SAMPLES)
					smooth[t] += one[t + k] * expf(-0.02f * k * k);
		}
		put(smooth, sizeof(smooth), out);
	}
	finish(in);
	finish(out);
}

static void migrate(const char *path)
{
	FILE *in = open_file(path, ".image", "r");
	static trace line[APERTURE], image;
	double total = 0;
	int held = 0;

	while (held < APERTURE && fread(line[held], sizeof(trace), 1, in) == 1)
		held++;
	finish(in);
	for (int pass = 0; pass < PASSES; pass++) {
		for (int at = 0; at < held; at++) {
			for (int t = 0; t < SAMPLES; t++) {
				float sum = 0;

				for (int from = 0; from < held; from++) {
					float offset = (float)(from - at) * (1.0f + 0.01f * pass);
					int when = (int)sqrtf((float)t * t + offset * offset);

					if (when < SAMPLES)
						sum += line[from][when];
				}
				image[t] += sum;
			}
		}
	}
	for (int t = 0; t < SAMPLES; t++)
		total += image[t];
	printf("sum %g\n", total);
}

int main(int count, char **words)
{
	int phase = count == 4 ? atoi(words[1]) : 0;

	switch (phase) {
	case 1:
		generate(words[2], atol(words[3]) * (1 << 20) / (long)sizeof(trace));
		return 0;
	case 2:
		stack(words[2]);
		return 0;
	case 3:
		filter(words[2]);
		return 0;
	case 4:
		migrate(words[2]);
		return 0;
	}
	fprintf(stderr, "usage: seismic 1|2|3|4 FILE MIB\n");
	return 2;
}
