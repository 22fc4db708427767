"""`.bin` and `.idx` files of Megatron-LM."""
