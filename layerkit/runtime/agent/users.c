/* /etc/passwd and /etc/group, read without NSS. Runs in the supervisor of an exec: the files are the image's. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

enum { MAX_FILE = 16 << 20, MAX_GROUPS = 65536 };

/* A whole regular file, ended by NUL; NULL where there is none. O_NONBLOCK: a fifo of that name must not hold us. */
static char *read_database(const char *path)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return NULL;
    char *text = NULL;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= MAX_FILE)
        text = malloc((size_t)about.st_size + 1);
    size_t size = 0;
    while (text && size < (size_t)about.st_size) {
        ssize_t got = read(fd, text + size, (size_t)about.st_size - size);
        if (got <= 0)
            break;
        size += (size_t)got;
    }
    if (text)
        text[size] = 0;
    close(fd);
    return text;
}

static bool parse_id(const char *text, uint32_t *value)
{
    uint64_t number = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || number > UINT32_MAX)
            return false;
        number = number * 10 + (uint64_t)(*text - '0');
    }
    if (number >= UINT32_MAX) /* (uid_t)-1 means "leave it" to the system calls */
        return false;
    *value = (uint32_t)number;
    return true;
}

/* Cuts the next line into `count` fields; false at the end. Lines with fewer fields have NULL in the rest. */
static bool next_line(char **cursor, char **fields, size_t count)
{
    char *line = strsep(cursor, "\n");
    if (!line)
        return false;
    for (size_t i = 0; i < count; i++)
        fields[i] = line ? strsep(&line, ":") : NULL;
    return true;
}

struct person {
    const char *name, *home;
    uint32_t uid, gid;
};

/* Finds a line by name, or by number where `name` is NULL. What it points at lives in `text`. */
static bool find_person(char *text, const char *name, uint32_t uid, struct person *person)
{
    char *fields[6];
    for (char *cursor = text; next_line(&cursor, fields, 6);) {
        if (!fields[3] || !parse_id(fields[2], &person->uid) || !parse_id(fields[3], &person->gid))
            continue;
        if (name ? strcmp(fields[0], name) != 0 : person->uid != uid)
            continue;
        person->name = fields[0];
        person->home = fields[5];
        return true;
    }
    return false;
}

static bool find_group(char *text, const char *name, uint32_t *gid)
{
    char *fields[3];
    for (char *cursor = text; text && next_line(&cursor, fields, 3);)
        if (fields[2] && strcmp(fields[0], name) == 0 && parse_id(fields[2], gid))
            return true;
    return false;
}

static bool is_member(char *members, const char *name)
{
    for (char *member; members && (member = strsep(&members, ","));)
        if (strcmp(member, name) == 0)
            return true;
    return false;
}

static int add_member_groups(char *text, const char *name, struct identity *identity)
{
    char *fields[4];
    uint32_t gid;
    for (char *cursor = text; text && next_line(&cursor, fields, 4);) {
        if (!fields[3] || !parse_id(fields[2], &gid) || !is_member(fields[3], name))
            continue;
        if (identity->group_count == MAX_GROUPS)
            return 0;
        gid_t *groups = realloc(identity->groups, (identity->group_count + 1) * sizeof *groups);
        if (!groups)
            return ENOMEM;
        identity->groups = groups;
        groups[identity->group_count++] = gid;
    }
    return 0;
}

static int resolve_group(const char *name, struct identity *identity, int *stage)
{
    uint32_t gid;
    char *text = read_database("/etc/group");
    *stage = STAGE_GROUP;
    bool known = find_group(text, name, &gid) || parse_id(name, &gid);
    free(text);
    if (!known)
        return ENOENT;
    identity->gid = gid;
    return 0;
}

/* As Docker reads USER: a name first, else a number; a group that is given stands alone, else all that list the user. */
int resolve_identity(const char *user, struct identity *identity, int *stage)
{
    struct person person = {0};
    uint32_t number = (uint32_t)getuid();
    char *copy = strdup(user), *passwd = read_database("/etc/passwd");
    *stage = STAGE_USER;
    if (!copy)
        return ENOMEM;
    char *group = strchr(copy, ':');
    if (group)
        *group++ = 0;
    /* A scan cuts the lines apart in place, so each of them gets a fresh copy. */
    char *by_name = passwd ? strdup(passwd) : NULL;
    bool known = by_name && *copy && find_person(by_name, copy, 0, &person);
    if (!known && *copy && !parse_id(copy, &number))
        return ENOENT;
    if (!known && passwd)
        known = find_person(passwd, NULL, number, &person);
    identity->switches = *user != 0;
    identity->uid = known ? person.uid : number;
    identity->gid = known ? person.gid : 0;
    identity->home = known && person.home && *person.home ? person.home : "/";
    if (group && *group)
        return resolve_group(group, identity, stage);
    if (!known || !identity->switches)
        return 0;
    char *groups = read_database("/etc/group");
    return add_member_groups(groups, person.name, identity);
}
