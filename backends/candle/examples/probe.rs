use text_embeddings_backend_candle as b; use text_embeddings_backend_core::*;
fn main(){
 let dir=std::path::PathBuf::from(std::env::args().nth(1).unwrap()); let w=std::env::args().nth(2).unwrap(); let limit:usize=std::env::args().nth(3).map_or(1000,|x|x.parse().unwrap());
 let config:serde_json::Value=serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
 let t=std::time::Instant::now();
 let mut l=b::load(&b::LoadOptions{config,weights:vec![dir.join("model.safetensors")],model_type:ModelType::ListwiseReranker,answers:AnswerTokens{true_id:9693,false_id:Some(2152)},threads:std::env::var("T").map_or(2,|t|t.parse().unwrap())}).map_err(|e|e.to_string()).unwrap();
 println!("load {:?} {}",t.elapsed(),l.description);
 let r:serde_json::Value=serde_json::from_slice(&std::fs::read(&w).unwrap()).unwrap();
 for _ in 0..3 { let mut bb=BatchBuilder::default();
 for c in r.as_array().unwrap().iter().take(limit){let ids:Vec<u32>=serde_json::from_value(c["ids"].clone()).unwrap(); bb.push(&ids);}
 let batch=bb.build(); let t=std::time::Instant::now(); let p=l.backend.predict(&batch).unwrap(); let d=t.elapsed().as_secs_f64();
 let err=p.rows().zip(r.as_array().unwrap()).map(|(s,c)|(s[0] as f64-(c["logit_yes"].as_f64().unwrap()-c["logit_no"].as_f64().unwrap())).abs()).fold(0.0,f64::max);
 println!("{} texts {} unique tokens {:.3}s {:.0} tok/s {:.2} pairs/s max raw err {err:.2e}",p.rows().len(),batch.token_ids().len(),d,batch.token_ids().len() as f64/d,p.rows().len() as f64/d); }
 let s=std::fs::read_to_string("/proc/self/status").unwrap(); for l in s.lines().filter(|l|l.starts_with("VmHWM")||l.starts_with("Rss")) {println!("{l}");}
}
