package storetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// moveKeys is how many keys one MIGRATE takes along.
const moveKeys = 100

// migrateTimeout bounds the standstill of a node that one MIGRATE causes.
const migrateTimeout = 5 * time.Second

// MoveSlots moves the slots of tags from node to node of the cluster behind url,
// one at a time and round after round, until ctx ends. The slot that is on its
// way then arrives. It returns how many moves it made.
func MoveSlots(ctx context.Context, url string, tags []string) (moves int, err error) {
	options, err := redis.ParseClusterURL(url)
	if err != nil {
		return 0, fmt.Errorf("read the URL of a cluster: %w", err)
	}
	var nodes []*node
	for _, addr := range options.Addrs {
		n := &node{addr: addr, Client: redis.NewClient(&redis.Options{Addr: addr})}
		defer func() { _ = n.Close() }()
		if n.id, err = n.ClusterMyID(ctx).Result(); err != nil {
			return 0, fmt.Errorf("ask %s for its id: %w", addr, err)
		}
		nodes = append(nodes, n)
	}
	for {
		for _, tag := range tags {
			if ctx.Err() != nil {
				return moves, nil
			}
			if err := moveOn(context.WithoutCancel(ctx), nodes, tag); err != nil {
				return moves, err
			}
			moves++
		}
	}
}

type node struct {
	*redis.Client
	addr, id string
}

// moveOn moves the slot of tag to the node behind its owner.
func moveOn(ctx context.Context, nodes []*node, tag string) error {
	slot, err := nodes[0].ClusterKeySlot(ctx, tag).Result()
	if err != nil {
		return fmt.Errorf("find the slot of %s: %w", tag, err)
	}
	owner, err := ownerOf(ctx, nodes, int(slot))
	if err != nil {
		return err
	}
	from, to := nodes[owner], nodes[(owner+1)%len(nodes)]
	host, port, err := net.SplitHostPort(to.addr)
	if err != nil {
		return fmt.Errorf("read address: %w", err)
	}
	if err := catchUp(ctx, from, to); err != nil {
		return err
	}
	err = errors.Join(
		to.Do(ctx, "cluster", "setslot", slot, "importing", from.id).Err(),
		from.Do(ctx, "cluster", "setslot", slot, "migrating", to.id).Err(),
	)
	for err == nil {
		var keys []string
		if keys, err = from.ClusterGetKeysInSlot(ctx, int(slot), moveKeys).Result(); err != nil || len(keys) == 0 {
			break
		}
		args := []any{"migrate", host, port, "", 0, migrateTimeout.Milliseconds(), "keys"}
		for _, key := range keys {
			args = append(args, key)
		}
		err = from.Do(ctx, args...).Err()
	}
	// The new owner first: it must know before the old one sends anybody to it.
	for _, n := range append([]*node{to, from}, nodes...) {
		if err == nil {
			err = n.Do(ctx, "cluster", "setslot", slot, "node", to.id).Err()
		}
	}
	if err != nil {
		return fmt.Errorf("move slot %d from %s to %s: %w", slot, from.addr, to.addr, err)
	}
	return nil
}

// catchUp waits until to has heard of the epoch of from. A node that takes a slot
// claims it with an epoch above all that it knows; if that is not above the former
// owner's, an old claim of the former owner that arrives late takes the slot away
// again, and then it is nobody's.
func catchUp(ctx context.Context, from, to *node) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		mine, err := from.epoch(ctx, "cluster_my_epoch")
		if err != nil {
			return err
		}
		known, err := to.epoch(ctx, "cluster_current_epoch")
		if err != nil {
			return err
		}
		if known >= mine {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// epoch is one of the epochs in a node's CLUSTER INFO.
func (n *node) epoch(ctx context.Context, field string) (int64, error) {
	info, err := n.ClusterInfo(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("ask %s for its epoch: %w", n.addr, err)
	}
	_, rest, _ := strings.Cut(info, field+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	epoch, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s of %s: %w", field, n.addr, err)
	}
	return epoch, nil
}

// ownerOf is the index of the node that says of itself that it owns slot:
// what others say of it may be old.
func ownerOf(ctx context.Context, nodes []*node, slot int) (int, error) {
	for i, n := range nodes {
		//nolint:staticcheck // On Redis 7.0, CLUSTER SHARDS leaves out slots that lately moved.
		ranges, err := n.ClusterSlots(ctx).Result()
		if err != nil {
			return 0, fmt.Errorf("ask for the owners of slots: %w", err)
		}
		for _, r := range ranges {
			// No node of these clusters has a replica.
			if r.Nodes[0].ID == n.id && r.Start <= slot && slot <= r.End {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("no node owns slot %d", slot)
}
