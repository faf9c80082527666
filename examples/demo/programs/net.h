/*
 * net.h: the ranks' connection to each other: TCP, a star around rank 0, everything in order of
 * rank. Any failure (a rank that is gone, or silent for five minutes) ends the process with one
 * line, since training cannot go on without a rank.
 */
#ifndef DEMO_NET_H
#define DEMO_NET_H

#include <stddef.h>

enum { NET_MAX_RANKS = 64 };

struct net {
	int rank, world;
	int peer[NET_MAX_RANKS]; /* rank 0: a socket for every other rank; others: only peer[0] */
};

/* Connects all ranks; returns when all are there. */
void net_open(struct net *net, int rank, int world, const char *address, const char *port);
/* all[r * n .. (r + 1) * n) = what rank r gave as mine, on every rank. */
void net_all_gather(struct net *net, const void *mine, size_t n, void *all);
/* Returns when every rank has called it. */
void net_barrier(struct net *net);
void net_close(struct net *net);

#endif
