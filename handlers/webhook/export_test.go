package webhook

// LargeBodies is how many large bodies are being read.
func (s *Service) LargeBodies() int { return len(s.intake.large) }
