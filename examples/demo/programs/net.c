#include "net.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

enum { SILENCE_SECONDS = 300, CONNECT_SECONDS = 60 };

static struct addrinfo *resolve(const char *address, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	int error = getaddrinfo(address, port, &hints, &found);
	if (error)
		die("look up %s port %s: %s", address, port, gai_strerror(error));
	return found;
}

static void configure(int fd)
{
	struct timeval limit = {.tv_sec = SILENCE_SECONDS};
	int one = 1;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
		die("configure a connection between ranks: %s", strerror(errno));
}

static const char *reason(void)
{
	if (errno == 0 || errno == EPIPE || errno == ECONNRESET)
		return "it is gone";
	return errno == EAGAIN ? "it was silent for five minutes" : strerror(errno);
}

static void get(struct net *net, int from, void *buf, size_t n)
{
	if (!read_full(net->peer[from], buf, n))
		die("receive from rank %d: %s", from, reason());
}

static void put(struct net *net, int to, const void *buf, size_t n)
{
	if (!write_full(net->peer[to], buf, n))
		die("send to rank %d: %s", to, reason());
}

/* Rank 0: every other rank connects and says its number. */
static void accept_all(struct net *net, const struct addrinfo *at)
{
	int one = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
	    bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, NET_MAX_RANKS))
		die("listen for the other ranks: %s", strerror(errno));
	configure(fd); /* bounds accept, too */
	for (int n = 1; n < net->world; n++) {
		int32_t rank = -1;
		int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (peer < 0)
			die("wait for the other ranks: %s", strerror(errno));
		configure(peer);
		if (!read_full(peer, &rank, sizeof rank) || rank < 1 || rank >= net->world || net->peer[rank] >= 0)
			die("a connection that is not one of %d ranks (said %d)", net->world, rank);
		net->peer[rank] = peer;
	}
	close(fd);
}

/* Other ranks: rank 0 may not be listening yet. */
static void connect_to_first(struct net *net, const struct addrinfo *at)
{
	double deadline = now_seconds() + CONNECT_SECONDS;
	int32_t rank = net->rank;

	for (;;) {
		int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			die("make a socket: %s", strerror(errno));
		if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
			net->peer[0] = fd;
			break;
		}
		int error = errno;
		close(fd);
		if (error != ECONNREFUSED || now_seconds() > deadline)
			die("connect to rank 0: %s", strerror(error));
		nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
	}
	configure(net->peer[0]);
	put(net, 0, &rank, sizeof rank);
}

void net_open(struct net *net, int rank, int world, const char *address, const char *port)
{
	net->rank = rank;
	net->world = world;
	for (int r = 0; r < NET_MAX_RANKS; r++)
		net->peer[r] = -1;
	if (world == 1)
		return;
	struct addrinfo *at = resolve(address, port);
	if (rank == 0)
		accept_all(net, at);
	else
		connect_to_first(net, at);
	freeaddrinfo(at);
	net_barrier(net);
}

void net_all_gather(struct net *net, const void *mine, size_t n, void *all)
{
	if (net->rank != 0) {
		put(net, 0, mine, n);
		get(net, 0, all, n * (size_t)net->world);
		return;
	}
	memcpy(all, mine, n);
	for (int r = 1; r < net->world; r++)
		get(net, r, (char *)all + n * (size_t)r, n);
	for (int r = 1; r < net->world; r++)
		put(net, r, all, n * (size_t)net->world);
}

void net_barrier(struct net *net)
{
	char mine = 0, all[NET_MAX_RANKS];
	net_all_gather(net, &mine, 1, all);
}

void net_close(struct net *net)
{
	for (int r = 0; r < NET_MAX_RANKS; r++)
		if (net->peer[r] >= 0)
			close(net->peer[r]);
}
