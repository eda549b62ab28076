/* Who descends from whom: one pass over /proc/PID/stat. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

/* The command's name may hold anything, also ") R 1": the fields begin after the last parenthesis. */
static bool parse_stat(char *text, struct process *process)
{
    char *fields = strrchr(text, ')');
    int parent, group, session;
    if (!fields || sscanf(fields + 1, " %c %d %d %d", &process->state, &parent, &group, &session) != 4)
        return false;
    process->pid = (pid_t)strtol(text, NULL, 10);
    process->parent = parent;
    process->session = session;
    process->marked = false;
    return true;
}

static bool read_process(int proc_fd, const char *name, struct process *process)
{
    char path[32], text[512];
    if (snprintf(path, sizeof path, "%.16s/stat", name) < 0)
        return false;
    int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false; /* it has ended meanwhile */
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return false;
    text[size] = 0;
    return parse_stat(text, process);
}

static bool append_process(struct snapshot *snapshot, const struct process *process)
{
    if (snapshot->count == snapshot->capacity) {
        size_t capacity = snapshot->capacity ? snapshot->capacity * 2 : 256;
        struct process *rows = realloc(snapshot->rows, capacity * sizeof *rows);
        if (!rows)
            return false;
        snapshot->rows = rows;
        snapshot->capacity = capacity;
    }
    snapshot->rows[snapshot->count++] = *process;
    return true;
}

bool take_snapshot(int proc_fd, struct snapshot *snapshot)
{
    snapshot->count = 0;
    int fd = proc_fd < 0 ? -1 : openat(proc_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool complete = true;
    for (struct dirent *entry; complete && (entry = readdir(folder));) {
        struct process process;
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && read_process(fd, entry->d_name, &process))
            complete = append_process(snapshot, &process);
    }
    closedir(folder);
    return complete;
}

static int by_pid(const void *a, const void *b)
{
    pid_t left = ((const struct process *)a)->pid, right = ((const struct process *)b)->pid;
    return (left > right) - (left < right);
}

static struct process *find_process(struct snapshot *snapshot, pid_t pid)
{
    struct process key = {.pid = pid};
    return bsearch(&key, snapshot->rows, snapshot->count, sizeof key, by_pid);
}

void mark_tree(struct snapshot *snapshot, pid_t root, pid_t session)
{
    qsort(snapshot->rows, snapshot->count, sizeof *snapshot->rows, by_pid);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < snapshot->count; i++) {
            struct process *row = &snapshot->rows[i];
            if (row->marked || row->pid == root)
                continue;
            struct process *parent = row->parent ? find_process(snapshot, row->parent) : NULL;
            if (row->parent == root || (session && row->session == session) || (parent && parent->marked))
                changed = row->marked = true;
        }
    }
}

void free_snapshot(struct snapshot *snapshot)
{
    free(snapshot->rows);
    *snapshot = (struct snapshot){0};
}
