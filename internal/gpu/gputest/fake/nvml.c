// A libnvidia-ml that answers from a file named "machine" beside it, read anew at each call, as gputest.Machine writes it:
//
//   driver 580.65.06          cuda 13000
//   card NAME|UUID|major|minor|total|reserved|free|used|percent|milliwatts|limit|celsius|flags
//   mig  …the same…           an instance of the card above it
//   compute PID USED          graphics PID USED, of the card or instance above it; USED is all ones where unknown
//
// flags: 1 lost, 2 bare, 4 MIG on, 8 crash, 16 hang. Structs and signatures are those of nvml.h.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct entry *nvmlDevice_t;
typedef unsigned long long u64;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { LOST = 1, BARE = 2, MIG = 4, CRASH = 8, HANG = 16 };

typedef struct { unsigned version; u64 total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { u64 total, free, used; } nvmlMemory_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned pid; u64 usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;

struct entry {
	char name[96], uuid[96];
	int major, minor, instance; // instance: -1 for a card
	u64 total, reserved, free, used;
	unsigned percent, milliwatts, limit, celsius, flags, processes[2];
	nvmlProcessInfo_t process[2][64];
};
static struct entry entries[64];
static int count, cuda;
static char driver[96];

static int load(void) {
	Dl_info info;
	char path[4096], line[1024];
	struct entry *e = 0;
	dladdr((void *)load, &info);
	snprintf(path, sizeof path, "%s", info.dli_fname);
	char *slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, "machine");
	FILE *f = fopen(path, "r");
	if (!f) return DRIVER_NOT_LOADED;
	count = 0;
	while (fgets(line, sizeof line, f)) {
		unsigned pid; u64 used;
		if (sscanf(line, "driver %95s", driver) == 1 || sscanf(line, "cuda %d", &cuda) == 1) continue;
		if (!strncmp(line, "card ", 5) || !strncmp(line, "mig ", 4)) {
			int mig = line[0] == 'm', instance = mig ? (e ? e->instance + 1 : 0) : -1;
			e = &entries[count++];
			memset(e, 0, sizeof *e);
			e->instance = instance;
			sscanf(line + (mig ? 4 : 5), "%95[^|]|%95[^|]|%d|%d|%llu|%llu|%llu|%llu|%u|%u|%u|%u|%u", e->name, e->uuid, &e->major, &e->minor,
				&e->total, &e->reserved, &e->free, &e->used, &e->percent, &e->milliwatts, &e->limit, &e->celsius, &e->flags);
		} else {
			int graphics = line[0] == 'g';
			if (e && sscanf(line, graphics ? "graphics %u %llu" : "compute %u %llu", &pid, &used) == 2 && e->processes[graphics] < 64)
				e->process[graphics][e->processes[graphics]++] = (nvmlProcessInfo_t){pid, used, ~0u, ~0u};
		}
	}
	fclose(f);
	return SUCCESS;
}

static nvmlReturn_t check(nvmlDevice_t d) {
	load();
	if (d < entries || d >= entries + count) return INVALID_ARGUMENT;
	if (d->flags & CRASH) abort();
	while (d->flags & HANG) pause();
	return d->flags & LOST ? GPU_IS_LOST : SUCCESS;
}

static nvmlReturn_t figure(nvmlDevice_t d, unsigned value, unsigned *out) {
	nvmlReturn_t r = check(d);
	if (r == SUCCESS && d->flags & BARE) r = NOT_SUPPORTED;
	if (r == SUCCESS) *out = value;
	return r;
}

static nvmlReturn_t text(const char *s, char *out, unsigned length) {
	if (strlen(s) >= length) return INSUFFICIENT_SIZE;
	strcpy(out, s);
	return SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return load(); }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t r) {
	switch (r) {
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NOT_FOUND: return "Not Found";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case GPU_IS_LOST: return "GPU is lost";
	}
	return "Unknown Error";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *v, unsigned n) { return text(driver, v, n); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = cuda; return SUCCESS; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n) {
	*n = 0;
	load();
	for (int i = 0; i < count; i++) *n += entries[i].instance < 0;
	return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *d) {
	load();
	for (int i = 0; i < count; i++)
		if (entries[i].instance < 0 && index-- == 0) return check(*d = &entries[i]);
	return INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
	*current = *pending = (d->flags & MIG) != 0;
	return check(d);
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *n) { *n = 7; return check(d); }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned i, nvmlDevice_t *instance) {
	nvmlDevice_t m = d + 1 + i;
	if (m >= entries + count || m->instance != (int)i) return NOT_FOUND;
	*instance = m;
	return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *s, unsigned n) { nvmlReturn_t r = check(d); return r ? r : text(d->name, s, n); }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *s, unsigned n) { nvmlReturn_t r = check(d); return r ? r : text(d->uuid, s, n); }
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) {
	*m = (nvmlMemory_t){d->total, d->free, d->used};
	return check(d);
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m) {
	if (m->version != (sizeof *m | 2u << 24)) return 25; // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	*m = (nvmlMemory_v2_t){m->version, d->total, d->reserved, d->free, d->used};
	return check(d);
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
	*major = d->major, *minor = d->minor;
	return check(d);
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) { u->memory = 0; return figure(d, d->percent, &u->gpu); }
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *v) { return figure(d, d->milliwatts, v); }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *v) { return figure(d, d->limit, v); }
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *v) { return sensor ? INVALID_ARGUMENT : figure(d, d->celsius, v); }

static nvmlReturn_t processes(nvmlDevice_t d, int graphics, unsigned *n, nvmlProcessInfo_t *out) {
	nvmlReturn_t r = check(d);
	unsigned have = d->processes[graphics], room = *n;
	if (r) return r;
	*n = have;
	if (room < have) return INSUFFICIENT_SIZE;
	memcpy(out, d->process[graphics], have * sizeof *out);
	return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *p) { return processes(d, 0, n, p); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *p) { return processes(d, 1, n, p); }
