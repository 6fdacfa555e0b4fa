package extproc

import (
	"context"
	"sync"
	"time"

	"keyway/domain"
)

// fakeFollowers is what a region knows of followers, whose leases end when a test says so.
type fakeFollowers struct {
	mu       sync.Mutex
	err      error
	by       map[string]string // follower by request; "" is free
	progress map[string]domain.Settlement
	// store knows what has ended.
	store *fakeStore
}

func (f *fakeFollowers) Follow(_ context.Context, follower string, list []domain.Settlement) ([]domain.Following, error) {
	return f.note(follower, list, follower)
}

func (f *fakeFollowers) HandOver(_ context.Context, follower string, list []domain.Settlement) error {
	_, err := f.note(follower, list, "")
	return err
}

// note leaves what follower may have to then.
func (f *fakeFollowers) note(follower string, list []domain.Settlement, then string) ([]domain.Following, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	if f.by == nil {
		f.by, f.progress = map[string]string{}, map[string]domain.Settlement{}
	}
	answers := make([]domain.Following, len(list))
	for i, one := range list {
		id := one.Decision.RequestID
		switch by := f.by[id]; {
		case f.store.has(id):
			answers[i] = domain.FollowingEnded
		case by != "" && by != follower:
			answers[i] = domain.FollowingElsewhere
		default:
			answers[i] = domain.FollowingHeld
			f.by[id], f.progress[id] = then, one
		}
	}
	return answers, nil
}

func (f *fakeFollowers) TakeOver(_ context.Context, follower string, _ time.Duration, most int) (list []domain.Settlement, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, by := range f.by {
		if by == "" && !f.store.has(id) && len(list) < most {
			f.by[id] = follower
			list = append(list, f.progress[id])
		}
	}
	return list, f.err
}
