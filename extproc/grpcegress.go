package extproc

import (
	"errors"
	"io"
	"strconv"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"keyway/domain"
	"keyway/telemetry"
	"keyway/wire"
)

// egressStream is what Envoy says of an attempt before the first message.
type egressStream struct {
	decision domain.Decision
	known    bool
	channel  string
	baseURL  string
	attempt  string
	// notes are what the verdict scripts noted of earlier attempts; see readNotes.
	notes string
}

// processEgress answers the request headers of one attempt, and its body when
// it is to be patched. It takes no part in the response: with the body Envoy has
// all of it, and the stream ends, so that an answer that takes long does not hang
// on this process.
func (s *Server) processEgress(stream extprocv3.ExternalProcessor_ProcessServer, e egressStream) error {
	var plan egressPlan
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		start := time.Now()
		var resp *extprocv3.ProcessingResponse
		switch msg := req.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			plan, err = s.planAttempt(stream, e, msg.RequestHeaders)
			if err != nil {
				resp = immediate(e.decision, err)
				s.logEgress(e, err)
			} else {
				resp = plan.headersResponse()
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			resp, err = plan.bodyResponse(msg.RequestBody)
			if err != nil {
				s.logEgress(e, err)
				resp = immediate(e.decision, err)
			}
		default:
			resp = &extprocv3.ProcessingResponse{}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		s.metrics.addedEgress.Observe(time.Since(start).Seconds())
		if req.GetRequestBody() != nil {
			return nil
		}
	}
}

func (s *Server) logEgress(e egressStream, err error) {
	var known *domain.Error
	if errors.As(err, &known) {
		return
	}
	s.logger.Error("attempt refused", telemetry.RequestID(e.decision.RequestID), "channel", e.channel, telemetry.Err(err))
}

func (s *Server) planAttempt(stream extprocv3.ExternalProcessor_ProcessServer, e egressStream, h *extprocv3.HttpHeaders) (egressPlan, error) {
	if !e.known {
		return egressPlan{}, errors.New("no decision")
	}
	number, err := strconv.Atoi(e.attempt)
	if err != nil {
		return egressPlan{}, err
	}
	if number > 1 {
		// Only here is it known at once that the one before it failed.
		s.blameEarlier(e.decision, number-1, e.notes)
	}
	return s.plan(stream.Context(), attempt{
		decision: e.decision, number: number, channel: e.channel, baseURL: e.baseURL, headers: headerMap(h.GetHeaders()),
	})
}

func (p egressPlan) headersResponse() *extprocv3.ProcessingResponse {
	common := &extprocv3.CommonResponse{HeaderMutation: mutation(p.set, p.remove)}
	resp := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}},
	}
	if len(p.patches) > 0 {
		resp.ModeOverride = &extprocfilterv3.ProcessingMode{
			RequestHeaderMode:   extprocfilterv3.ProcessingMode_SEND,
			RequestBodyMode:     extprocfilterv3.ProcessingMode_BUFFERED,
			RequestTrailerMode:  extprocfilterv3.ProcessingMode_SKIP,
			ResponseHeaderMode:  extprocfilterv3.ProcessingMode_SKIP,
			ResponseBodyMode:    extprocfilterv3.ProcessingMode_NONE,
			ResponseTrailerMode: extprocfilterv3.ProcessingMode_SKIP,
		}
	}
	return resp
}

func (p egressPlan) bodyResponse(b *extprocv3.HttpBody) (*extprocv3.ProcessingResponse, error) {
	body, err := wire.ApplyPatches(b.GetBody(), p.patches)
	if err != nil {
		return nil, err
	}
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			HeaderMutation: mutation([]wire.Header{{Name: "content-length", Value: strconv.Itoa(len(body))}}, nil),
			BodyMutation:   &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}},
		}}},
	}, nil
}
